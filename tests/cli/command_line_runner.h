// Runs a command line of `sluice` inside the test and keeps what it wrote.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "cli/command_line.h"

namespace sluice {

struct CommandLineResult {
  int status = 0;
  std::string out;
  std::string err;
};

inline CommandLineResult RunSluice(const std::vector<std::string>& arguments, const std::string& input = "") {
  std::istringstream in(input);
  std::ostringstream out, err;
  CommandLineResult result;
  result.status = RunCommandLine(arguments, in, out, err);
  result.out = out.str();
  result.err = err.str();
  return result;
}

}  // namespace sluice
