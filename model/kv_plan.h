// How much memory a model's KV takes and what it costs to send it, as pure arithmetic: no model is loaded, nothing is
// measured. Sizes come from kv_layout.h, which start-up and admission ask as well; here they meet context lengths,
// batch, a device's memory, a link and a rate of prefill.
//
//   GQA (MHA and MQA are its ends):  bytes = 2 x B x L x H_kv x d x s x b
//   MLA:                             bytes =     B x L x (d_c + d_R) x s x b
//
// K and V, B bytes an element (scales counted in), L layers, H_kv KV heads, d channels of a head, d_c of the latent and
// d_R of its shared rotated key, s tokens kept of a request, b requests.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/cache_policy.h"
#include "common/status.h"
#include "model/kv_layout.h"

namespace sluice {

// What a plan must know of a model.
struct PlannedModel {
  KvLayout layout;
  int heads = 0;     // query heads; MHA would keep K and V of each
  int nope_dim = 0;  // MLA: channels of a head's key beside the rotated ones, and of its value; 0 where unknown
  int value_dim = 0;

  bool is_mla() const { return layout.kind == KvKind::kMla; }
  // "MHA", "GQA-8", "MQA", "MLA".
  std::string scheme() const;
};
// Every contradiction at once, with both values.
Status Validate(const PlannedModel& model);

struct KvPlanOptions {
  std::vector<int64_t> context_tokens;
  int64_t batch = 1;                             // requests at once
  std::vector<CachePolicySpec> policies = {{}};  // the first is `full`; a context is the prompt that they keep of
  int page_tokens = 16;                          // requests hold whole pages
  std::optional<int64_t> device_bytes;
  int64_t model_bytes = 0;  // of the device's memory: weights, scratch
  std::optional<double> link_bytes_per_s;
  std::optional<double> prefill_tokens_per_s;
};
// Every wrong field at once, with its value.
Status Validate(const KvPlanOptions& options);

// What a prompt's KV takes on the link, beside the prefill that makes it. `q` = link bytes/s over (KV bytes/token x
// prefill tokens/s): below 1, nothing hides the transfer.
struct TransferPlan {
  int64_t tokens = 0;  // those that stay
  int64_t bytes = 0;   // and at most what tells which they are
  double seconds = 0;
  std::optional<double> q;  // this and what follows only where the rate of prefill is known
  double prefill_seconds = 0;
  double late_after_prefill_s = 0;  // what the transfer adds to prefill when it begins as prefill ends
  double late_per_layer_s = 0;      // and when each layer leaves while the next one is computed
};

// One codec under one policy at one context length.
struct KvPlanRow {
  KvCodec codec = KvCodec::kBf16;
  size_t policy = 0;       // of the options
  int64_t slots = 0;       // of a request
  int64_t page_slots = 0;  // of the whole pages that they lie in; those that are more stay empty
  int64_t request_bytes = 0;
  int64_t kept_slots_bytes = 0;          // within request_bytes: positions and scores, where there is a policy
  int64_t batch_bytes = 0;               // of the whole batch
  std::optional<int64_t> requests;       // that fit beside the model; absent without the device's memory
  std::optional<TransferPlan> transfer;  // of one prompt; absent without a link
};

struct ContextPlan {
  int64_t context_tokens = 0;
  // bf16 K and V of every query head: what MHA would take, or an MLA model whose heads are expanded. 0 where unknown.
  int64_t mha_bytes = 0;
  std::vector<KvPlanRow> rows;  // policy by policy, in the order of the codecs
};

struct CodecSize {
  KvCodec codec = KvCodec::kBf16;
  int64_t bytes_per_token = 0;  // all layers
  double bytes_per_element = 0;
};

struct KvPlan {
  std::vector<CodecSize> codecs;  // those that can hold the layout
  int64_t mha_bytes_per_token = 0;
  std::vector<ContextPlan> contexts;
};

// InvalidArgument for what Validate refuses and for sizes beyond 63 bits, naming the factors.
StatusOr<KvPlan> MakeKvPlan(const PlannedModel& model, const KvPlanOptions& options);

// What to do about a transfer, from the plan's numbers.
enum class TransferMeans : uint8_t {
  kAfterPrefill,         // q above 20 in bf16: less than a twentieth of prefill, whenever it is sent
  kPerLayer,             // 5 to 20: each layer while the next one is computed
  kPerLayerCompressed,   // 1 to 5: overlapped, and in fewer bytes
  kCodecRequired,        // below 1: hidden only in `codec`
  kPolicyRequired,       // no codec hides it, but sending what `policy` keeps does, in `codec`
  kPrefillWhereDecoded,  // nothing of this hides it
};
struct TransferAdvice {
  TransferMeans means = TransferMeans::kAfterPrefill;
  double plain_q = 0;              // of bf16 with every token sent
  const KvPlanRow* row = nullptr;  // what is advised; in kPrefillWhereDecoded the best there is
};
// REQUIRES: the rows of `context` have a transfer with q. The answer points into `context`.
TransferAdvice Advise(const ContextPlan& context);

}  // namespace sluice
