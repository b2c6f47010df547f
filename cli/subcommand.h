// A subcommand of `sluice`: puts its flags into the application, and runs with what was parsed.
#pragma once

#include <istream>
#include <memory>
#include <ostream>

#include "CLI/App.hpp"
#include "common/status.h"

namespace sluice {

// Where a subcommand writes: results to `out`, everything else to `err`.
struct Streams {
  std::istream& in;
  std::ostream& out;
  std::ostream& err;
};

class Subcommand {
 public:
  virtual ~Subcommand() = default;

  // The parsed subcommand, as CLI11 knows it.
  const CLI::App& app() const { return *app_; }

  // InvalidArgument that is about the command line alone (flags that exclude each other): exit status 2.
  virtual Status Check() const { return absl::OkStatus(); }
  virtual Status Run(Streams streams) = 0;

 protected:
  explicit Subcommand(CLI::App* app) : app_(app) {}

  CLI::App* app_;
};

// Each adds one subcommand to `parent`, which outlives it.
std::unique_ptr<Subcommand> MakeServeCommand(CLI::App& parent);
std::unique_ptr<Subcommand> MakeGatewayCommand(CLI::App& parent);
std::unique_ptr<Subcommand> MakePrefillCommand(CLI::App& parent);
std::unique_ptr<Subcommand> MakeDecodeCommand(CLI::App& parent);
std::unique_ptr<Subcommand> MakeModelsCommand(CLI::App& parent);
std::unique_ptr<Subcommand> MakePlanCommand(CLI::App& parent);
std::unique_ptr<Subcommand> MakeEvalCommand(CLI::App& parent);
std::unique_ptr<Subcommand> MakeCompleteCommand(CLI::App& parent);
std::unique_ptr<Subcommand> MakeChatCommand(CLI::App& parent);

}  // namespace sluice
