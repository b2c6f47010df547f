#include "model/transformer.h"

#include <algorithm>
#include <chrono>

#include "model/forward_pass.h"
#include "model/transformer_weights.h"
#include "spdlog/spdlog.h"

namespace sluice {

namespace {

Status CheckOptions(const TransformerOptions& options) {
  if (options.threads >= 1 && options.batch_tokens_max >= 1 && options.logit_rows_max >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("threads (", options.threads, "), batch_tokens_max (",
                                                 options.batch_tokens_max, ") and logit_rows_max (",
                                                 options.logit_rows_max, ") must be at least 1"));
}

// Of a sequence under a cache policy, what is the policy's.
Status CheckKept(const SequenceChunk& chunk) {
  const KeptSlots& kept = *chunk.kept;
  const auto tokens = static_cast<int64_t>(chunk.tokens.size());
  if (chunk.scores != nullptr)
    return absl::InvalidArgumentError("a prompt that is pruned as it is computed is not scored");
  if (chunk.start_position == kept.position() && tokens <= kept.StepMax()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(tokens, " tokens from position ", chunk.start_position, " of ",
                                                 kept.StepMax(), " from ", kept.position(), " that the cache takes"));
}

Status CheckChunk(const SequenceChunk& chunk, const ModelConfig& config, int64_t sequence_tokens_max,
                  const KvPool& kv) {
  const auto tokens = static_cast<int64_t>(chunk.tokens.size());
  if (tokens == 0 || chunk.start_position < 0) {
    return absl::InvalidArgumentError(absl::StrCat(tokens, " tokens from position ", chunk.start_position));
  }
  if (chunk.kept != nullptr) SLUICE_RETURN_IF_ERROR(CheckKept(chunk));
  const int64_t end = chunk.first_slot() + tokens;
  const CachePolicy policy = chunk.kept != nullptr ? chunk.kept->policy() : CachePolicy();
  const int64_t positions = chunk.start_position + tokens;
  if (positions > policy.PositionsMax(config.context_tokens_max)) {
    return absl::InvalidArgumentError(absl::StrCat("position ", positions - 1, " is beyond the model's context of ",
                                                   config.context_tokens_max, " tokens"));
  }
  if (sequence_tokens_max > 0 && end > sequence_tokens_max) {
    return absl::InvalidArgumentError(absl::StrCat("position ", end - 1, " of a sequence of at most ",
                                                   sequence_tokens_max, " tokens, for which there is scratch memory"));
  }
  if (static_cast<int64_t>(chunk.pages.size()) < kv.PagesFor(end)) {
    return absl::InvalidArgumentError(
        absl::StrCat(chunk.pages.size(), " KV pages for ", end, " tokens, which need ", kv.PagesFor(end)));
  }
  for (const PageIndex page : chunk.pages) {
    if (page < 0 || page >= kv.pages_total()) {
      return absl::InvalidArgumentError(absl::StrCat("KV page ", page, " of a pool of ", kv.pages_total()));
    }
  }
  for (const TokenId id : chunk.tokens) {
    if (id < 0 || id >= config.vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat("token ", id, " of a vocabulary of ", config.vocab_size));
    }
  }
  return absl::OkStatus();
}

}  // namespace

int64_t LogitRows(const SequenceChunk& chunk) {
  switch (chunk.logits) {
    case LogitsFor::kAll:
      return static_cast<int64_t>(chunk.tokens.size());
    case LogitsFor::kLast:
      return 1;
    case LogitsFor::kNone:
      break;
  }
  return 0;
}

struct Transformer::Impl {
  Impl(const ModelConfig& c, const TransformerOptions& o) : config(c), options(o), pool(o.threads) {}

  const ModelConfig config;
  const TransformerOptions options;
  ThreadPool pool;
  TransformerWeights weights;
  std::unique_ptr<ForwardPass> pass;

  Status CheckBatch(const Batch& batch, const KvPool& kv) const;
};

Status Transformer::Impl::CheckBatch(const Batch& batch, const KvPool& kv) const {
  if (kv.options().layout != KvLayout::Of(config)) {
    return absl::InvalidArgumentError(absl::StrCat("the KV pool has ", ToString(kv.options().layout), ", the model ",
                                                   ToString(KvLayout::Of(config))));
  }
  int64_t tokens = 0;
  int64_t logit_rows = 0;
  int64_t ranked_slots = 0;
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    tokens += static_cast<int64_t>(batch.sequences[i].tokens.size());
    logit_rows += LogitRows(batch.sequences[i]);
    const KeptSlots* kept = batch.sequences[i].kept;
    if (kept != nullptr && kept->policy().ranks_steps()) ranked_slots += kept->held() + 1;
    const Status status = CheckChunk(batch.sequences[i], config, options.sequence_tokens_max, kv);
    if (!status.ok()) return WithContext(status, absl::StrCat("sequence ", i, " of the batch"));
  }
  if (tokens > options.batch_tokens_max || logit_rows > options.logit_rows_max) {
    return absl::InvalidArgumentError(absl::StrCat("a batch of ", tokens, " tokens with ", logit_rows,
                                                   " rows of logits; at most ", options.batch_tokens_max, " and ",
                                                   options.logit_rows_max, " fit"));
  }
  if (ranked_slots > options.ranked_slots_max) {
    return absl::InvalidArgumentError(absl::StrCat("steps that are ranked over ", ranked_slots, " slots; at most ",
                                                   options.ranked_slots_max, " fit"));
  }
  return absl::OkStatus();
}

StatusOr<std::unique_ptr<Transformer>> Transformer::Create(const Checkpoint* checkpoint,
                                                           const TransformerOptions& options) {
  SLUICE_RETURN_IF_ERROR(CheckOptions(options));
  const auto start = std::chrono::steady_clock::now();
  auto impl = std::make_unique<Impl>(checkpoint->config(), options);
  SLUICE_ASSIGN_OR_RETURN(impl->weights, TransformerWeights::Load(*checkpoint, {.exact = options.exact}, impl->pool));
  SLUICE_ASSIGN_OR_RETURN(impl->pass, ForwardPass::Create(impl->config, options, &impl->weights, &impl->pool));
  spdlog::info("loaded {} in {:.1f} s", impl->config.name,
               std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  return std::unique_ptr<Transformer>(new Transformer(std::move(impl)));
}

StatusOr<Transformer::Memory> Transformer::Plan(const Checkpoint& checkpoint, const TransformerOptions& options) {
  SLUICE_RETURN_IF_ERROR(CheckOptions(options));
  SLUICE_ASSIGN_OR_RETURN(const TransformerWeights::Sizes sizes,
                          TransformerWeights::Plan(checkpoint, {.exact = options.exact}));
  return Memory{.weights_bytes = sizes.packed_bytes,
                .mapped_bytes = sizes.mapped_bytes,
                .scratch_bytes = ForwardPass::Bytes(checkpoint.config(), options)};
}

StatusOr<absl::Span<const float>> Transformer::Forward(const Batch& batch, KvPool& kv, ForwardObserver* observer) {
  SLUICE_RETURN_IF_ERROR(impl_->CheckBatch(batch, kv));
  return impl_->pass->Run(batch, kv, observer);
}

Transformer::Transformer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Transformer::~Transformer() = default;
KvCodecCounts Transformer::kv_counts() const { return impl_->pass->kv_counts(); }
const ModelConfig& Transformer::config() const { return impl_->config; }
const TransformerOptions& Transformer::options() const { return impl_->options; }

}  // namespace sluice
