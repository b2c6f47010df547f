// The command line of `sluice` as a function, so that tests can call it.
#pragma once

#include <istream>
#include <ostream>
#include <string>
#include <vector>

namespace sluice {

// Runs `sluice` with `arguments` (without the program's name) and returns the exit status: 0, 1 for what failed while
// running, 2 for a command line that cannot be understood. Errors are one sentence on `err`.
int RunCommandLine(const std::vector<std::string>& arguments, std::istream& in, std::ostream& out, std::ostream& err);

}  // namespace sluice
