// What `sluice plan` says, as a table for people and as JSON: the same numbers, formula and advice.
#pragma once

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "model/kv_plan.h"
#include "nlohmann/json.hpp"

namespace sluice {

struct PlanReport {
  std::string source;  // path of the model, or how the shape was spelt
  PlannedModel model;
  int64_t weights_bytes = 0;       // 0 where they are not known
  int64_t scratch_bytes = 0;       // of a worker with the default options
  int64_t context_tokens_max = 0;  // the model's own; 0 where it is not known
  KvPlanOptions options;
  std::vector<std::string> policies = {"full"};  // names of the options' policies, as they were asked for
  KvPlan plan;

  // Another model's shape to set beside this one's.
  std::string against_source;
  PlannedModel against;
  std::optional<KvPlan> against_plan;
};

// The formula of the model's KV, each factor named.
struct PlanFactor {
  std::string symbol;
  std::string meaning;
};
struct PlanFormula {
  std::string text;  // "bytes = 2 x B x L x H_kv x d x s x b"
  std::vector<PlanFactor> factors;
  // With numbers, for one row: "2 x 2 x 80 x 8 x 128 x 8192 x 1 = 2684354560".
  std::string example;
};
PlanFormula Formula(const PlanReport& report);

// One sentence or two on a context's transfer. REQUIRES: rows with q.
std::string AdviceText(const PlanReport& report, const ContextPlan& context);
// "per_layer_compressed".
std::string_view Name(TransferMeans means);
// bf16 KV of the batch with every token kept, there and here. REQUIRES: against_plan.
struct AgainstRow {
  int64_t context_tokens = 0;
  int64_t there_bytes = 0;
  int64_t here_bytes = 0;
};
std::vector<AgainstRow> AgainstRows(const PlanReport& report);
// What is compared when two models are. REQUIRES: against_plan.
std::string AgainstNote(const PlanReport& report);

void PrintPlan(const PlanReport& report, std::ostream& out);
nlohmann::ordered_json PlanJson(const PlanReport& report);

}  // namespace sluice
