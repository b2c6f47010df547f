// The other process of the tests with several: the test's program, started again with --peer MODE ADDRESS INTERFACE.
// "echo" listens, prints its address as a line and sends every message back. "stream" connects and sends payloads of
// 1 MiB, eight at a time. "call" connects at each line of its standard input, sends a few payloads, awaits their echoes
// and prints "ok" or what went wrong. Each goes when its standard input ends, so that none outlives its test.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"

namespace sluice {

// What a caller of mode "call" waits for, each: a connection, and all echoes.
inline constexpr absl::Duration kCallPatience = absl::Seconds(10);

// The exit status. `interface` may be empty.
int RunPeer(const std::string& mode, const std::string& address, const std::string& interface);

class Peer {
 public:
  // `wrapper`: a command that runs the peer's, such as {"ip", "netns", "exec", NAME}.
  Peer(const std::string& mode, const std::string& address, const std::string& interface = "",
       std::vector<std::string> wrapper = {});
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // The next line that it prints; empty where it has ended.
  std::string AwaitLine();
  std::string AwaitAddress() { return AwaitLine(); }
  // Of mode "call".
  std::string Call();
  void Signal(int signal);
  void Kill();

 private:
  int pid_ = -1;
  int stdin_ = -1;
  int stdout_ = -1;
};

}  // namespace sluice
