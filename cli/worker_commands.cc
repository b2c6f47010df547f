// `sluice gateway`, `sluice prefill` and `sluice decode`: the processes of a service, one by one.
#include "CLI/App.hpp"
#include "cli/subcommand.h"
#include "cli/worker_flags.h"
#include "decode/process.h"
#include "gateway/process.h"
#include "prefill/process.h"

namespace sluice {
namespace {

// A process whose options are plain data that judge themselves.
template <typename Options>
class WorkerCommand final : public Subcommand {
 public:
  WorkerCommand(CLI::App* app, void (*add_flags)(CLI::App&, Options*), Status (*run)(const Options&))
      : Subcommand(app), run_(run) {
    add_flags(*app, &options_);
  }

  Status Check() const override { return options_.Validate(); }
  Status Run(Streams) override { return run_(options_); }

 private:
  Options options_;
  Status (*run_)(const Options&);
};

}  // namespace

std::unique_ptr<Subcommand> MakeGatewayCommand(CLI::App& parent) {
  return std::make_unique<WorkerCommand<GatewayOptions>>(
      parent.add_subcommand("gateway", "The public face: HTTP with the OpenAI API, in front of prefill and decode"),
      AddGatewayFlags, RunGateway);
}

std::unique_ptr<Subcommand> MakePrefillCommand(CLI::App& parent) {
  return std::make_unique<WorkerCommand<PrefillOptions>>(
      parent.add_subcommand("prefill", "Computes prompts and sends their KV to decode processes"), AddPrefillFlags,
      RunPrefill);
}

std::unique_ptr<Subcommand> MakeDecodeCommand(CLI::App& parent) {
  return std::make_unique<WorkerCommand<DecodeOptions>>(
      parent.add_subcommand("decode", "Holds KV and generates tokens"), AddDecodeFlags, RunDecode);
}

}  // namespace sluice
