#include "model/kv_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/kept_prompt.h"
#include "model/kept_slots.h"

namespace sluice {
namespace {

constexpr int64_t kBatchMax = 1 << 20;
constexpr int kPageTokensMax = 1 << 16;
constexpr double kRateMin = 1e-3;  // of bytes or tokens a second
constexpr double kRateMax = 1e15;

class Problems {
 public:
  void Range(const char* name, int64_t value, int64_t min, int64_t max) {
    if (value < min || value > max) Add(name, " is ", value, ", ", min, " to ", max, " are possible");
  }
  template <typename... Parts>
  void Add(const Parts&... parts) {
    problems_.push_back(absl::StrCat(parts...));
  }
  Status status() const {
    if (problems_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrJoin(problems_, "; "));
  }

 private:
  std::vector<std::string> problems_;
};

void CheckRate(const char* name, const std::optional<double>& rate, Problems& problems) {
  if (rate.has_value() && !(*rate >= kRateMin && *rate <= kRateMax)) {
    problems.Add(name, " is ", *rate, ", ", kRateMin, " to ", kRateMax, " are possible");
  }
}

StatusOr<int64_t> Times(int64_t a, int64_t b, const char* what) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    return absl::InvalidArgumentError(absl::StrCat(what, ", ", a, " x ", b, ", exceeds 2^63 bytes"));
  }
  return product;
}

// bf16 bytes of a token's K and V of every query head. Rows of K and V of an expanded MLA model differ in width.
int64_t MhaBytesPerToken(const PlannedModel& model) {
  const KvLayout& l = model.layout;
  if (!model.is_mla())
    return static_cast<int64_t>(Bytes(KvLayout::Gqa(l.layers, model.heads, l.head_dim), KvCodec::kBf16, 1));
  if (model.nope_dim == 0) return 0;
  const auto tensor = [&](int channels) {
    return TensorBytes(KvLayout::Gqa(l.layers, model.heads, channels), KvCodec::kBf16, 1).total();
  };
  return static_cast<int64_t>((tensor(model.nope_dim + l.rope_dim) + tensor(model.value_dim)) *
                              static_cast<size_t>(l.layers));
}

// Fills what follows from bytes, the link and, where it is known, the rate of prefill.
void FinishTransfer(const KvPlanOptions& options, int64_t context_tokens, int layers, TransferPlan& plan) {
  plan.seconds = static_cast<double>(plan.bytes) / *options.link_bytes_per_s;
  if (!options.prefill_tokens_per_s.has_value()) return;
  plan.prefill_seconds = static_cast<double>(context_tokens) / *options.prefill_tokens_per_s;
  plan.q = plan.prefill_seconds / plan.seconds;
  plan.late_after_prefill_s = plan.seconds;
  // A pipeline of two stages and `layers` equal items: the link waits for the first layer, prefill for nobody.
  plan.late_per_layer_s = std::max(plan.seconds / layers, plan.seconds - plan.prefill_seconds * (layers - 1) / layers);
}

class Planner {
 public:
  Planner(const PlannedModel& model, const KvPlanOptions& options) : model_(model), options_(options) {}

  StatusOr<KvPlan> Make() {
    plan_.mha_bytes_per_token = MhaBytesPerToken(model_);
    const double elements = static_cast<double>(model_.layout.tensors()) * model_.layout.layers *
                            model_.layout.rows_per_token() * model_.layout.row().width();
    for (const KvCodecInfo& info : KvCodecs()) {
      if (!CheckCodec(model_.layout, info.codec).ok()) continue;
      const auto bytes = static_cast<int64_t>(Bytes(model_.layout, info.codec, 1));
      plan_.codecs.push_back({info.codec, bytes, static_cast<double>(bytes) / elements});
    }
    for (const int64_t tokens : options_.context_tokens) {
      SLUICE_ASSIGN_OR_RETURN(ContextPlan context, Context(tokens));
      plan_.contexts.push_back(std::move(context));
    }
    return std::move(plan_);
  }

 private:
  StatusOr<ContextPlan> Context(int64_t tokens) const {
    ContextPlan context = {.context_tokens = tokens};
    SLUICE_ASSIGN_OR_RETURN(context.mha_bytes, Times(plan_.mha_bytes_per_token, tokens, "KV as MHA"));
    SLUICE_RETURN_IF_ERROR(Times(context.mha_bytes, options_.batch, "KV of the batch as MHA").status());
    for (size_t policy = 0; policy < options_.policies.size(); ++policy) {
      for (const CodecSize& codec : plan_.codecs) {
        SLUICE_ASSIGN_OR_RETURN(const KvPlanRow row, Row(tokens, policy, codec));
        context.rows.push_back(row);
      }
    }
    return context;
  }

  StatusOr<KvPlanRow> Row(int64_t tokens, size_t policy_index, const CodecSize& codec) const {
    SLUICE_ASSIGN_OR_RETURN(const CachePolicy policy, Resolve(options_.policies[policy_index], tokens));
    KvPlanRow row = {.codec = codec.codec, .policy = policy_index, .slots = policy.Slots(tokens, 0)};
    row.page_slots = (row.slots + options_.page_tokens - 1) / options_.page_tokens * options_.page_tokens;
    SLUICE_ASSIGN_OR_RETURN(const int64_t page_bytes, Times(codec.bytes_per_token, row.page_slots, "KV of a request"));
    if (policy.kind != CachePolicyKind::kFull) {
      row.kept_slots_bytes = static_cast<int64_t>(KeptSlots::Bytes(policy, model_.layout, row.slots));
    }
    int64_t held_bytes = 0;
    if (__builtin_add_overflow(page_bytes, row.kept_slots_bytes, &held_bytes)) {
      return absl::InvalidArgumentError("KV, positions and scores of a request exceed 2^63 bytes");
    }
    row.request_bytes = codec.bytes_per_token * row.slots + row.kept_slots_bytes;
    SLUICE_ASSIGN_OR_RETURN(row.batch_bytes, Times(row.request_bytes, options_.batch, "KV of the batch"));
    if (options_.device_bytes.has_value()) {
      row.requests = std::max<int64_t>(*options_.device_bytes - options_.model_bytes, 0) / held_bytes;
    }
    if (options_.link_bytes_per_s.has_value()) {
      const int64_t sent = policy.Kept(tokens);
      const auto told_bytes = static_cast<int64_t>(KeptPromptBytesMax(policy, model_.layout, tokens));
      row.transfer = {.tokens = sent, .bytes = codec.bytes_per_token * sent + told_bytes};
      FinishTransfer(options_, tokens, model_.layout.layers, *row.transfer);
    }
    return row;
  }

  const PlannedModel& model_;
  const KvPlanOptions& options_;
  KvPlan plan_;
};

const KvPlanRow* Find(const ContextPlan& context, size_t policy, KvCodec codec) {
  for (const KvPlanRow& row : context.rows) {
    if (row.policy == policy && row.codec == codec) return &row;
  }
  return nullptr;
}

// The most accurate codec under `policy` with q of at least `q`.
const KvPlanRow* Reaches(const ContextPlan& context, size_t policy, double q) {
  for (const KvCodec codec : KvCodecsByAccuracy()) {
    if (AccuracyRank(codec) < AccuracyRank(KvCodec::kBf16)) continue;  // which is what "as it is" means
    const KvPlanRow* row = Find(context, policy, codec);
    if (row != nullptr && *row->transfer->q >= q) return row;
  }
  return nullptr;
}

const KvPlanRow* Fastest(const ContextPlan& context) {
  return &*std::max_element(context.rows.begin(), context.rows.end(),
                            [](const KvPlanRow& a, const KvPlanRow& b) { return *a.transfer->q < *b.transfer->q; });
}

}  // namespace

std::string PlannedModel::scheme() const {
  if (is_mla()) return "MLA";
  if (layout.kv_heads == heads) return "MHA";
  return layout.kv_heads == 1 ? "MQA" : absl::StrCat("GQA-", layout.kv_heads);
}

Status Validate(const PlannedModel& model) {
  Problems problems;
  const KvLayout& l = model.layout;
  problems.Range("layers", l.layers, 1, kLayersMax);
  problems.Range("heads", model.heads, 1, kHeadsMax);
  if (model.is_mla()) {
    problems.Range("latent", l.latent, 1, kLatentMax);
    problems.Range("rope_dim", l.rope_dim, 1, kHeadDimMax);
    if (l.rope_dim % 2 != 0) problems.Add("rope_dim (", l.rope_dim, ") is odd");
    problems.Range("nope_dim", model.nope_dim, 0, kHeadDimMax);
    problems.Range("value_dim", model.value_dim, 0, kHeadDimMax);
    if ((model.nope_dim == 0) != (model.value_dim == 0)) {
      problems.Add("nope_dim (", model.nope_dim, ") and value_dim (", model.value_dim, ") go together");
    }
  } else {
    problems.Range("kv_heads", l.kv_heads, 1, kHeadsMax);
    problems.Range("head_dim", l.head_dim, 1, kHeadDimMax);
    if (l.kv_heads > 0 && model.heads % l.kv_heads != 0) {
      problems.Add("heads (", model.heads, ") is not a multiple of kv_heads (", l.kv_heads, ")");
    }
    if (l.head_dim % 2 != 0) problems.Add("head_dim (", l.head_dim, ") is odd");
  }
  SLUICE_RETURN_IF_ERROR(problems.status());
  return CheckCodec(l, KvCodec::kBf16);
}

Status Validate(const KvPlanOptions& options) {
  Problems problems;
  if (options.context_tokens.empty()) problems.Add("no context length is given");
  for (const int64_t tokens : options.context_tokens) problems.Range("context", tokens, 1, kContextTokensMax);
  problems.Range("batch", options.batch, 1, kBatchMax);
  problems.Range("page tokens", options.page_tokens, 1, kPageTokensMax);
  if (options.policies.empty() || options.policies[0].kind != CachePolicyKind::kFull) {
    problems.Add("the first policy must be full");
  }
  for (const CachePolicySpec& policy : options.policies) {
    if (const Status status = Validate(policy); !status.ok()) problems.Add(std::string(status.message()));
  }
  if (options.device_bytes.has_value()) problems.Range("device memory", *options.device_bytes, 1, INT64_MAX);
  problems.Range("bytes of the model", options.model_bytes, 0, INT64_MAX);
  CheckRate("link bytes/s", options.link_bytes_per_s, problems);
  CheckRate("prefill tokens/s", options.prefill_tokens_per_s, problems);
  return problems.status();
}

StatusOr<KvPlan> MakeKvPlan(const PlannedModel& model, const KvPlanOptions& options) {
  SLUICE_RETURN_IF_ERROR(Validate(model));
  SLUICE_RETURN_IF_ERROR(Validate(options));
  return Planner(model, options).Make();
}

TransferAdvice Advise(const ContextPlan& context) {
  constexpr double kHidden = 1;
  constexpr double kEasy = 5;      // a fifth of prefill, were it sent afterwards
  constexpr double kNothing = 20;  // a twentieth
  const KvPlanRow* plain = Find(context, 0, KvCodec::kBf16);
  TransferAdvice advice = {.plain_q = *plain->transfer->q, .row = plain};
  if (advice.plain_q > kNothing) return advice;
  if (advice.plain_q >= kEasy) {
    advice.means = TransferMeans::kPerLayer;
    return advice;
  }
  if (advice.plain_q >= kHidden) {
    advice.means = TransferMeans::kPerLayerCompressed;
    // Twice the bytes saved for nothing measurable; what costs accuracy is not needed here.
    for (const KvCodec codec : {KvCodec::kInt8, KvCodec::kMlaFp8}) {
      if (const KvPlanRow* row = Find(context, 0, codec); row != nullptr) {
        advice.row = row;
        return advice;
      }
    }
    advice.means = TransferMeans::kPerLayer;  // no such codec takes rows of this shape
    return advice;
  }
  if (const KvPlanRow* row = Reaches(context, 0, kHidden); row != nullptr) {
    advice.means = TransferMeans::kCodecRequired;
    advice.row = row;
    return advice;
  }
  for (size_t policy = 1; Find(context, policy, KvCodec::kBf16) != nullptr; ++policy) {
    if (const KvPlanRow* row = Reaches(context, policy, kHidden); row != nullptr) {
      advice.means = TransferMeans::kPolicyRequired;
      advice.row = row;
      return advice;
    }
  }
  advice.means = TransferMeans::kPrefillWhereDecoded;
  advice.row = Fastest(context);
  return advice;
}

}  // namespace sluice
