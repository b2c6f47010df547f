#include <csignal>
#include <iostream>

#include "cli/command_line.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

int main(int argc, char** argv) {
  // Standard output belongs to results.
  spdlog::set_default_logger(spdlog::stderr_logger_mt("sluice"));
  spdlog::set_pattern("%Y-%m-%d %H:%M:%S.%e %l %v");
  // A client that went away is an error of a write, not the end of this process.
  std::signal(SIGPIPE, SIG_IGN);
  return sluice::RunCommandLine({argv + 1, argv + argc}, std::cin, std::cout, std::cerr);
}
