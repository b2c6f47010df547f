// What storing KV in each codec changes in a model's predictions, against f32: the same tokens go through one
// transformer and a pool for each codec, block by block, and every position's distribution is compared.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/ids.h"
#include "model/transformer.h"

namespace sluice {

struct CodecAccuracy {
  KvCodec codec = KvCodec::kF32;
  int64_t tokens = 0;       // predicted
  double nll = 0;           // sums over them: -log p of the token that follows, in nats,
  double kld = 0;           // KL divergence of the codec's distribution from f32's,
  int64_t same_top = 0;     // and positions whose likeliest token is f32's
  std::vector<float> nlls;  // of each token

  double mean_nll() const { return nll / static_cast<double>(tokens); }
  double mean_kld() const { return kld / static_cast<double>(tokens); }
  double top1_agreement() const { return static_cast<double>(same_top) / static_cast<double>(tokens); }
};

// `ids` in windows of `context` tokens, each from an empty cache; in a window every token but the first is predicted.
// The first of the result is f32, then every codec that can hold the model's layout. Aborts on errors.
// REQUIRES: the transformer takes batches of `block` tokens with logits for each.
std::vector<CodecAccuracy> MeasureKvAccuracy(Transformer& transformer, absl::Span<const TokenId> ids, int64_t context,
                                             int64_t block);

// The same numbers as the reference implementation has them, from tests/data/quality/codecs.json.
struct ExpectedAccuracy {
  std::string codec;  // "int8"; f32 is the first
  double nll = 0;
  double delta_nll = 0;
  double mean_kld = 0;
  double top1_agreement = 1;
};
std::vector<ExpectedAccuracy> ReadExpectedAccuracy(const std::string& path);

}  // namespace sluice
