// `sluice plan`: what a model's KV takes, how many requests fit, and what sending it costs.
#include "CLI/CLI.hpp"
#include "cli/flags.h"
#include "cli/plan_flags.h"
#include "cli/plan_report.h"
#include "cli/subcommand.h"
#include "model/checkpoint/checkpoint.h"
#include "model/transformer.h"

namespace sluice {
namespace {

// An option whose text `parse` reads into `*value`; what it refuses is an error of the command line.
template <typename Value, typename Parse>
CLI::Option* AddParsed(CLI::App& app, const std::string& flag, const std::string& type, Value* value,
                       const std::string& help, Parse parse) {
  return app
      .add_option_function<std::string>(
          flag,
          [flag, value, parse](const std::string& text) {
            auto parsed = parse(text);
            if (!parsed.ok()) throw CLI::ValidationError(flag, std::string(parsed.status().message()));
            *value = *std::move(parsed);
          },
          help)
      ->type_name(type)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

class PlanCommand final : public Subcommand {
 public:
  explicit PlanCommand(CLI::App* app) : Subcommand(app) {
    app->add_option("--model", model_path_, "GGUF file or Hugging Face folder; its weights are not read")
        ->type_name("PATH");
    // Shapes hold commas: kept as text, for the report names them as they were spelt.
    AddShape("--shape", &report_.source, &report_.model,
             "Instead of a model: layers=80,heads=64,kv_heads=8,head_dim=128 or "
             "layers=27,heads=16,latent=512,rope_dim=64[,nope_dim=128,value_dim=128]");
    AddShape("--against", &report_.against_source, &report_.against, "Another model's shape, to set beside this one's");
    app->add_option("--context", options().context_tokens,
                    "Tokens of a request; several with commas (a model's own limit where none is given)")
        ->type_name("TOKENS,")
        ->delimiter(',');
    app->add_option("--batch", options().batch, "Requests at once")->capture_default_str()->type_name("REQUESTS");
    AddParsed(*app, "--device-memory", "BYTES", &options().device_bytes, "Of the device: says how many requests fit",
              ParseByteCount);
    AddBytes(*app, "--weights", &report_.weights_bytes, "What a shape's weights take of the device's memory");
    AddPolicies();
    AddParsed(*app, "--link", "RATE", &options().link_bytes_per_s,
              "Between prefill and decode, such as 10Gbit/s or 1.25GB/s", ParseLinkRate);
    app->add_option("--prefill-rate", options().prefill_tokens_per_s,
                    "Tokens/s of a prefill worker: gives q and advice")
        ->type_name("TOKENS/S")
        ->needs("--link");
    app->add_flag("--json", json_, "As JSON");
  }

  Status Check() const override {
    const bool has_shape = !report_.source.empty();
    if (has_shape == !model_path_.empty())
      return absl::InvalidArgumentError("give either --model PATH or --shape SHAPE");
    if (has_shape && report_.options.context_tokens.empty())
      return absl::InvalidArgumentError("give --context with --shape");
    if (!has_shape && report_.weights_bytes > 0)
      return absl::InvalidArgumentError("--weights is of a shape; a model's are known");
    return absl::OkStatus();
  }

  Status Run(Streams streams) override {
    if (!model_path_.empty()) SLUICE_RETURN_IF_ERROR(ReadModel());
    options().model_bytes = report_.weights_bytes + report_.scratch_bytes;
    SLUICE_ASSIGN_OR_RETURN(report_.plan, MakeKvPlan(report_.model, options()));
    if (!report_.against_source.empty()) {
      SLUICE_ASSIGN_OR_RETURN(report_.against_plan, MakeKvPlan(report_.against, options()));
    }
    if (json_) {
      streams.out << PlanJson(report_).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << "\n";
    } else {
      PrintPlan(report_, streams.out);
    }
    return absl::OkStatus();
  }

 private:
  KvPlanOptions& options() { return report_.options; }

  // Beside full, which is always planned.
  void AddPolicies() {
    app_->add_option_function<std::vector<std::string>>(
            "--policies",
            [this](const std::vector<std::string>& texts) {
              for (const std::string& text : texts) {
                const StatusOr<CachePolicySpec> policy = ParseCachePolicySpec(text);
                if (!policy.ok()) throw CLI::ValidationError("--policies", std::string(policy.status().message()));
                if (policy->kind == CachePolicyKind::kFull) continue;
                options().policies.push_back(*policy);
                report_.policies.push_back(text);
              }
            },
            absl::StrCat("Plan these too: whose KV stays, ", kPolicyForms))
        ->delimiter(',')
        ->type_name("POLICY,");
  }

  void AddShape(const std::string& flag, std::string* source, PlannedModel* model, const std::string& help) {
    app_->add_option_function<std::string>(
            flag,
            [flag, source, model](const std::string& text) {
              const StatusOr<PlannedModel> parsed = ParseShape(text);
              if (!parsed.ok()) throw CLI::ValidationError(flag, std::string(parsed.status().message()));
              *source = text;
              *model = *parsed;
            },
            help)
        ->type_name("SHAPE")
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }

  // What the checkpoint says, and what a worker's defaults would take beside its KV.
  Status ReadModel() {
    SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, OpenCheckpoint(model_path_));
    SLUICE_ASSIGN_OR_RETURN(const Transformer::Memory memory, Transformer::Plan(*checkpoint, TransformerOptions()));
    const ModelConfig& config = checkpoint->config();
    report_.source = model_path_;
    report_.model = {.layout = KvLayout::Of(config), .heads = config.heads};
    if (config.mla.has_value()) {
      report_.model.nope_dim = config.mla->nope_dim;
      report_.model.value_dim = config.mla->value_dim;
    }
    report_.weights_bytes = static_cast<int64_t>(memory.weights_bytes + memory.mapped_bytes);
    report_.scratch_bytes = static_cast<int64_t>(memory.scratch_bytes);
    report_.context_tokens_max = config.context_tokens_max;
    if (options().context_tokens.empty()) options().context_tokens.push_back(config.context_tokens_max);
    return absl::OkStatus();
  }

  PlanReport report_;
  std::string model_path_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Subcommand> MakePlanCommand(CLI::App& parent) {
  return std::make_unique<PlanCommand>(parent.add_subcommand("plan", "Plan memory and transfer of a model's KV"));
}

}  // namespace sluice
