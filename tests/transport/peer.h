// The other process of the tests with two: the test's program, started again with --peer MODE ADDRESS. "echo" listens,
// prints its address as a line and sends every message back; "stream" connects and sends payloads of 1 MiB, eight at a
// time. Either goes when its standard input ends, so that none outlives its test.
#pragma once

#include <string>

namespace sluice {

// The exit status.
int RunPeer(const std::string& mode, const std::string& address);

}  // namespace sluice
