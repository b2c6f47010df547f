// What every process of the service does at its beginning and at its end: an incarnation id, the announcement of its
// addresses, the wait for the signal to leave.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/ids.h"
#include "common/status.h"

namespace sluice {

// Random and never zero: no two starts of a process share one.
Epoch NewEpoch();

// Writes {"name": "value", ..., "pid": N} and a line end to `fd` and closes it, unless it is standard output or error;
// does nothing for -1. Values are what a supervisor connects to, so this comes last of a start. Unavailable where
// nobody reads any more.
Status Announce(int fd, const std::vector<std::pair<std::string, std::string>>& fields);

// SIGTERM and SIGINT, taken by a wait and not by a handler. Made before any thread is started: they are blocked in the
// calling thread and in all that it starts. The destructor gives the former mask back.
class TerminationSignals {
 public:
  TerminationSignals();
  ~TerminationSignals();
  TerminationSignals(const TerminationSignals&) = delete;
  TerminationSignals& operator=(const TerminationSignals&) = delete;

  // Blocks until one comes. Returns its number.
  int Wait();

 private:
  struct State;
  State* state_;
};

}  // namespace sluice
