// A model with a KV pool, as a test drives them: sequences that grow by chunks, logits and KV read back.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "kernels/codec/codec.h"
#include "model/checkpoint/checkpoint.h"
#include "model/kv_pool.h"
#include "model/transformer.h"

namespace sluice {

template <typename T>
T Must(StatusOr<T> value) {
  SLUICE_CHECK(value.ok(), "", value.status().ToString());
  return *std::move(value);
}

inline std::string TinyModel(const std::string& name) { return std::string(SLUICE_TEST_DATA "/tiny/") + name; }

struct EngineOptions {
  TransformerOptions transformer = {.threads = 2, .batch_tokens_max = 512, .logit_rows_max = 512};
  KvCodec codec = KvCodec::kF32;
  int pages = 64;
  int page_tokens = 16;
};

// A sequence and the pages it holds.
struct Sequence {
  PageLease lease;
  int64_t tokens = 0;
};

class Engine {
 public:
  Engine(const std::string& path, const EngineOptions& options)
      : checkpoint_(Must(OpenCheckpoint(path))),
        transformer_(Must(Transformer::Create(checkpoint_.get(), options.transformer))),
        pool_(Must(KvPool::Create({.layout = KvLayout::Of(checkpoint_->config()),
                                   .codec = options.codec,
                                   .page_tokens = options.page_tokens,
                                   .pages = options.pages}))) {}

  const ModelConfig& config() const { return checkpoint_->config(); }
  KvPool& pool() { return *pool_; }
  Transformer& transformer() { return *transformer_; }

  Sequence NewSequence() { return {.lease = Must(pool_->Lease(0))}; }

  // Makes room for `ids` and says how the batch names them. `ids` must live until Forward.
  SequenceChunk Chunk(Sequence& sequence, absl::Span<const TokenId> ids, LogitsFor logits, bool generated = false) {
    const int pages = pool_->PagesFor(sequence.tokens + static_cast<int64_t>(ids.size()));
    const int missing = pages - static_cast<int>(sequence.lease.pages().size());
    SLUICE_CHECK(sequence.lease.Extend(std::max(missing, 0)).ok(), "the test's pool is too small");
    const SequenceChunk chunk = {ids, sequence.tokens, sequence.lease.pages(), logits, generated};
    sequence.tokens += static_cast<int64_t>(ids.size());
    return chunk;
  }

  std::vector<float> Forward(const Batch& batch, ForwardObserver* observer = nullptr) {
    const absl::Span<const float> logits = Must(transformer_->Forward(batch, *pool_, observer));
    return {logits.begin(), logits.end()};
  }

  // The logits after a token that the model drew. `id` must live until then.
  std::vector<float> Decode(Sequence& sequence, const TokenId& id) {
    return Forward({{Chunk(sequence, {&id, 1}, LogitsFor::kLast, /*generated=*/true)}});
  }

  // The logits of the last token of `ids`, fed in chunks of `chunk`.
  std::vector<float> Prefill(Sequence& sequence, absl::Span<const TokenId> ids, size_t chunk) {
    std::vector<float> logits;
    for (size_t at = 0; at < ids.size(); at += chunk) {
      const auto part = ids.subspan(at, chunk);
      logits = Forward({{Chunk(sequence, part, at + chunk >= ids.size() ? LogitsFor::kLast : LogitsFor::kNone)}});
    }
    return logits;
  }

  // A tensor of one layer, K and V or the latents, as f32: [rows_per_token, tokens, channels] (the goldens' order).
  std::vector<float> ReadKv(const Sequence& sequence, int layer, int tensor) {
    const KvPoolOptions& o = pool_->options();
    const KvCodecInfo& codec = Info(o.codec);
    const KvRowShape shape = o.layout.row();
    const int rows = o.layout.rows_per_token();
    const auto width = static_cast<size_t>(shape.width());
    std::vector<float> out(static_cast<size_t>(rows * sequence.tokens) * width);
    for (int64_t i = 0; i < rows * sequence.tokens; ++i) {
      const int64_t token = i % sequence.tokens;
      const PageIndex page = sequence.lease.pages()[static_cast<size_t>(token / o.page_tokens)];
      const KvPlane plane = pool_->Plane(page, layer, tensor);
      const auto row = static_cast<size_t>(token % o.page_tokens * rows + i / sequence.tokens);
      codec.decode(shape, plane.codes + row * codec.code_bytes(shape), plane.scales + row * codec.scale_bytes(shape), 1,
                   out.data() + static_cast<size_t>(i) * width, shape.width());
    }
    return out;
  }

 private:
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Transformer> transformer_;
  std::unique_ptr<KvPool> pool_;
};

inline TokenId Argmax(absl::Span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Largest difference over the largest wanted value: the goldens' measure.
inline double RelativeError(absl::Span<const float> got, absl::Span<const float> want) {
  SLUICE_CHECK(got.size() == want.size(), "", got.size(), " values, ", want.size(), " wanted");
  double error = 0;
  double largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double difference = std::abs(static_cast<double>(got[i]) - want[i]);
    error = difference <= error ? error : difference;  // this way round a NaN stays
    largest = std::max(largest, std::abs(static_cast<double>(want[i])));
  }
  return error / largest;
}

}  // namespace sluice
