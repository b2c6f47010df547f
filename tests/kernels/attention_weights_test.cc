// What cache policies ask of attention: the weights of a token, how much each key got from many, and queries of a token
// that meet sinks where others do not. Against softmax in double, for grouped-query and latent attention.
#include <cmath>
#include <limits>

#include "common/rng.h"
#include "gtest/gtest.h"
#include "kernels/attention.h"
#include "kernels/isa.h"
#include "kernels/latent_attention.h"
#include "tests/kernels/paged_cache.h"

namespace sluice {
namespace {

constexpr int64_t kContext = 1024;

std::vector<float> Random(int64_t count, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> x(static_cast<size_t>(count));
  for (float& v : x) v = static_cast<float>(rng.Uniform() * 4 - 2);
  return x;
}

// Softmax weights of a head of a token that sees `keys` keys; the first `sinks` meet sink_q.
std::vector<double> Weights(const AttentionShape& shape, const PagedCache& cache, int head, int64_t keys, int64_t sinks,
                            const float* q, const float* sink_q) {
  std::vector<double> p(static_cast<size_t>(keys));
  const int kv_head = head / (shape.heads / shape.kv_heads);
  for (int64_t k = 0; k < keys; ++k) {
    const float* of_key = (k < sinks ? sink_q : q) + head * shape.key_dim;
    double s = 0;
    for (int c = 0; c < shape.key_dim; ++c) s += of_key[c] * cache.Element(0, k, kv_head, c, false);
    p[static_cast<size_t>(k)] = s * shape.scale;
  }
  const double max = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (double& x : p) sum += x = std::exp(x - max);
  for (double& x : p) x /= sum;
  return p;
}

class AttentionWeights : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override { ASSERT_TRUE(SetIsa(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(SetIsa(SupportedIsas().back()).ok()); }
};

const AttentionShape kShapes[] = {{9, 3, 64, 64, 0.125f}, {4, 4, 128, 128, 0.09f}, {8, 1, 32, 32, 0.18f}};

// Queries that are rounded to 16 bits move a score by some 1e-4, and a weight by as much of itself.
double Tolerance(const KvCodecInfo& codec) { return codec.rotated ? 1e-3 : 2e-5; }

TEST_P(AttentionWeights, OfATokenAreTheFormulasWithAndWithoutSinks) {
  for (const KvCodecInfo& codec : KvCodecs()) {
    if (codec.codec == KvCodec::kMlaFp8) continue;
    for (const AttentionShape& shape : kShapes) {
      for (const auto& [keys, sinks] :
           {std::pair{1, 0}, {15, 4}, {256, 0}, {257, 1}, {600, 4}, {600, 300}, {1024, 0}}) {
        SCOPED_TRACE(
            absl::StrCat(std::string(codec.name), ", head_dim ", shape.key_dim, ", keys ", keys, ", sinks ", sinks));
        const PagedCache cache(shape, {.codec = codec.codec, .seed = 3}, {keys});
        const int64_t q_row = int64_t{shape.heads} * shape.key_dim;
        const std::vector<float> q = Random(q_row, 4);
        const std::vector<float> sink_q = Random(q_row, 5);
        std::vector<float> first_weights;
        std::vector<float> first_out;
        for (const int threads : {1, 3}) {
          ThreadPool pool(threads);
          Attention attention = *Attention::Create(shape, 1, kContext, threads);
          const int64_t stride = Attention::WeightsStride(keys);
          std::vector<float> weights(static_cast<size_t>(shape.heads * stride), NAN);
          std::vector<float> out(static_cast<size_t>(shape.heads * shape.value_dim), NAN);
          AttentionSequence sequence = {0, 1, keys - 1, cache.pages(0)};
          sequence.sinks = sinks;
          sequence.sink_q = sink_q.data();
          sequence.weights = weights.data();
          sequence.weights_stride = stride;
          attention.Run(cache.view(), {{sequence}}, q.data(), q_row, out.data(), q_row, pool);
          for (int h = 0; h < shape.heads; ++h) {
            const std::vector<double> want = Weights(shape, cache, h, keys, sinks, q.data(), sink_q.data());
            std::vector<double> result(static_cast<size_t>(shape.value_dim));
            for (int64_t k = 0; k < keys; ++k) {
              const double w = want[static_cast<size_t>(k)];
              ASSERT_NEAR(weights[static_cast<size_t>(h * stride + k)], w, Tolerance(codec) * w + 1e-7)
                  << h << " " << k;
              for (int c = 0; c < shape.value_dim; ++c) {
                result[static_cast<size_t>(c)] += w * cache.Element(0, k, h / (shape.heads / shape.kv_heads), c, true);
              }
            }
            for (int c = 0; c < shape.value_dim; ++c) {
              ASSERT_NEAR(out[static_cast<size_t>(h * shape.value_dim + c)], result[static_cast<size_t>(c)], 5e-4) << h;
            }
          }
          for (int h = 0; h < shape.heads; ++h) {
            for (int64_t k = keys; k < stride; ++k) weights[static_cast<size_t>(h * stride + k)] = 0;  // scratch
          }
          if (first_out.empty()) first_out = out, first_weights = weights;
          EXPECT_EQ(out, first_out) << "with " << threads << " threads";
          EXPECT_EQ(weights, first_weights) << "with " << threads << " threads";
          if (sinks > 0) continue;
          sequence.weights = nullptr;
          attention.Run(cache.view(), {{sequence}}, q.data(), q_row, out.data(), q_row, pool);
          EXPECT_EQ(out, first_out) << "asking for weights changed the answer";
        }
      }
    }
  }
}

// Weights, [heads, stride], and result, [heads, value_dim], of a token behind `keys` - 1 others.
struct OfToken {
  int64_t stride;
  std::vector<float> weights;
  std::vector<float> out;
};
OfToken Attend(const AttentionShape& shape, const PagedCache& cache, int64_t keys, const std::vector<float>& q) {
  const int64_t stride = Attention::WeightsStride(keys);
  OfToken result = {stride, std::vector<float>(static_cast<size_t>(shape.heads * stride), NAN),
                    std::vector<float>(static_cast<size_t>(shape.heads * shape.value_dim), NAN)};
  AttentionSequence sequence = {0, 1, keys - 1, cache.pages(0)};
  sequence.weights = result.weights.data();
  sequence.weights_stride = stride;
  ThreadPool pool(1);
  Attention attention = *Attention::Create(shape, 1, kContext, 1);
  attention.Run(cache.view(), {{sequence}}, q.data(), int64_t{shape.heads} * shape.key_dim, result.out.data(),
                int64_t{shape.heads} * shape.value_dim, pool);
  return result;
}

// One key has all but a 600th of the weight, the others each less than half a 2^16th: however weights are rounded, what
// they have together counts.
TEST_P(AttentionWeights, ManySmallOnesBesideALargeOneAreNotLost) {
  constexpr int kDim = 64;
  constexpr int64_t kKeys = 256;
  for (const KvCodecInfo& codec : KvCodecs()) {
    if (codec.codec == KvCodec::kMlaFp8) continue;
    for (const int heads : {1, 2, 3, 4, 6}) {
      SCOPED_TRACE(absl::StrCat(std::string(codec.name), ", ", heads, " heads"));
      const AttentionShape shape = {heads, 1, kDim, kDim, 1.0f};
      PagedCache cache(shape, {.codec = codec.codec, .seed = 8}, {kKeys});
      for (int64_t k = 0; k < kKeys; ++k) {
        std::vector<float> key(kDim, 0.0f);
        std::vector<float> value(kDim, 1.0f);
        if (k == 77) {
          for (size_t c = 0; c < kDim; c += 2) value[c] = -1.0f;
        } else {
          key[3] = -12.0f;
        }
        cache.Write(0, k, 0, false, key.data());
        cache.Write(0, k, 0, true, value.data());
      }
      std::vector<float> q(static_cast<size_t>(heads * kDim), 0.0f);
      for (int h = 0; h < heads; ++h) q[static_cast<size_t>(h * kDim + 3)] = 1.0f;
      const auto [stride, weights, out] = Attend(shape, cache, kKeys, q);
      for (int h = 0; h < heads; ++h) {
        const float* w = weights.data() + h * stride;
        for (int c = 0; c < kDim; ++c) {
          double small = 0;
          for (int64_t k = 0; k < kKeys; ++k) small += k == 77 ? 0.0 : w[k] * double{cache.Element(0, k, 0, c, true)};
          ASSERT_GT(small, 1e-3);
          const double large = w[77] * double{cache.Element(0, 77, 0, c, true)};
          ASSERT_NEAR(out[static_cast<size_t>(h * kDim + c)] - large, small, 0.1 * small) << h << " " << c;
        }
      }
    }
  }
}

// What a codec's arithmetic rounds on the way from weights to sums of values is no more than f32 does, whatever the
// spread of weights and of rows' sizes.
TEST_P(AttentionWeights, TimesTheValuesAreTheResult) {
  for (const KvCodecInfo& codec : KvCodecs()) {
    if (codec.codec == KvCodec::kMlaFp8) continue;
    for (const float scale : {0.0f, 0.1f, 3.0f}) {
      for (const int heads : {1, 2, 3, 4, 5, 7, 8, 9}) {
        for (const int dim : {32, 64, 96, 128}) {
          for (const int64_t keys : {1, 6, 250, 700}) {
            SCOPED_TRACE(absl::StrCat(std::string(codec.name), ", ", heads, " heads of ", dim, ", keys ", keys,
                                      ", scale ", scale));
            const AttentionShape shape = {heads, 1, dim, dim, scale};
            PagedCache cache(shape, {.codec = codec.codec, .seed = 8}, {keys});
            Rng rng(9);
            for (int64_t k = 0; k < keys; ++k) {
              const float size = std::exp2(static_cast<float>(rng.Uniform() * 24 - 20));
              std::vector<float> v = Random(dim, static_cast<uint64_t>(100 + k));
              for (float& x : v) x *= size;
              cache.Write(0, k, 0, true, v.data());
            }
            const auto [stride, weights, out] = Attend(shape, cache, keys, Random(int64_t{heads} * dim, 10));
            for (int h = 0; h < heads; ++h) {
              for (int c = 0; c < dim; ++c) {
                double want = 0;
                for (int64_t k = 0; k < keys; ++k)
                  want += weights[static_cast<size_t>(h * stride + k)] * double{cache.Element(0, k, 0, c, true)};
                // Of a sum of terms below the largest value; rotated codecs sum as many again.
                ASSERT_NEAR(out[static_cast<size_t>(h * dim + c)], want, 2e-5) << h << " " << c;
              }
            }
          }
        }
      }
    }
  }
}

TEST_P(AttentionWeights, ColumnsAreTheSumsOfWhatEachRowGave) {
  for (const KvCodecInfo& codec : KvCodecs()) {
    if (codec.codec == KvCodec::kMlaFp8) continue;
    for (const AttentionShape& shape : kShapes) {
      for (const int lists : {1, shape.kv_heads}) {
        // A prompt's chunk behind others, of which the first rows are not scored.
        constexpr int64_t kStart = 270, kTokens = 60, kFirst = 7, kEnd = kStart + kTokens;
        SCOPED_TRACE(absl::StrCat(std::string(codec.name), ", head_dim ", shape.key_dim, ", lists ", lists));
        const PagedCache cache(shape, {.codec = codec.codec, .seed = 6}, {kEnd});
        const int64_t q_row = int64_t{shape.heads} * shape.key_dim;
        const std::vector<float> q = Random(q_row * kTokens, 7);
        const int64_t stride = 336;
        std::vector<double> want(static_cast<size_t>(lists * stride), 1.0);
        const int list_heads = shape.heads / lists;
        for (int64_t t = kFirst; t < kTokens; ++t) {
          for (int h = 0; h < shape.heads; ++h) {
            const auto p = Weights(shape, cache, h, kStart + t + 1, 0, q.data() + t * q_row, nullptr);
            for (size_t k = 0; k < p.size(); ++k)
              want[static_cast<size_t>(h / list_heads * stride) + k] += p[k] / list_heads;
          }
        }
        std::vector<float> first;
        for (const int threads : {1, 3}) {
          ThreadPool pool(threads);
          Attention attention = *Attention::Create(shape, kTokens, kContext, threads);
          std::vector<SoftmaxOfRow> softmax(static_cast<size_t>(kTokens * shape.heads));
          std::vector<float> out(static_cast<size_t>(kTokens * q_row));
          AttentionSequence sequence = {0, kTokens, kStart, cache.pages(0)};
          sequence.softmax = softmax.data();
          attention.Run(cache.view(), {{sequence}}, q.data(), q_row, out.data(), q_row, pool);
          std::vector<float> columns(want.size(), 1.0f);
          attention.AddColumns(cache.view(), sequence, kFirst, q.data(), q_row, lists, columns.data(), stride, pool);
          for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(columns[i], want[i], Tolerance(codec) * want[i]) << i;
          if (first.empty()) first = columns;
          EXPECT_EQ(columns, first) << "with " << threads << " threads";
          // Each row gave one, all together.
          for (int list = 0; list < lists; ++list) {
            double sum = 0;
            for (int64_t k = 0; k < kEnd; ++k) sum += columns[static_cast<size_t>(list * stride + k)] - 1.0;
            EXPECT_NEAR(sum, kTokens - kFirst, 1e-3);
          }
        }
      }
    }
  }
}

// Latent attention: absorbed weights and sinks, expanded columns, against the formula over expanded keys.
class LatentWeightsOf {
 public:
  static constexpr LatentShape kShape = {.heads = 4, .latent = 64, .rope_dim = 16, .nope_dim = 32, .value_dim = 32};
  static constexpr int64_t kKeys = 300;
  static constexpr int kPageTokens = 16;
  static constexpr float kScale = 0.14f;

  explicit LatentWeightsOf(KvCodec codec) : codec_(codec) {
    const KvRowShape row = {.channels = kShape.latent, .rope = kShape.rope_dim};
    row_bytes_ = Info(codec).code_bytes(row);
    memory_.resize((kKeys + kPageTokens) * row_bytes_);
    std::vector<float> rows = Random(kKeys * row.width(), 8);
    (void)Info(codec).encode(row, rows.data(), kKeys, row.width(), memory_.data(), nullptr);
    Info(codec).decode(row, memory_.data(), nullptr, kKeys, rows.data(), row.width());
    rows_ = rows;
    for (int32_t p = 0; p * kPageTokens < kKeys; ++p) pages_.push_back(p);
    up_ = Random(kShape.heads * (kShape.nope_dim + kShape.value_dim) * kShape.latent, 9);
    for (float& x : up_) x *= 0.1f;
  }

  PagedKv view() const {
    return {.k = {.codes = memory_.data(), .code_bytes = row_bytes_},
            .page_stride_bytes = kPageTokens * row_bytes_,
            .page_tokens = kPageTokens,
            .codec = codec_};
  }
  ConstMatrixView up() const {
    return {up_.data(), DType::kF32, kShape.heads * (kShape.nope_dim + kShape.value_dim), kShape.latent,
            static_cast<size_t>(kShape.latent) * sizeof(float)};
  }
  const int32_t* pages() const { return pages_.data(); }

  // `sink_rope`, [heads, rope_dim], is the rotated part of the queries that meet the first `sinks` keys.
  std::vector<double> Weights(int head, int64_t keys, int64_t sinks, const float* q, const float* sink_rope) const {
    std::vector<double> p(static_cast<size_t>(keys));
    for (int64_t k = 0; k < keys; ++k) {
      const float* row = rows_.data() + k * (kShape.latent + kShape.rope_dim);
      double s = 0;
      for (int c = 0; c < kShape.nope_dim; ++c) {
        double key = 0;
        const float* w = up_.data() + (head * (kShape.nope_dim + kShape.value_dim) + c) * kShape.latent;
        for (int i = 0; i < kShape.latent; ++i) key += static_cast<double>(w[i]) * row[i];
        s += q[head * kShape.key_dim() + c] * key;
      }
      const float* rope =
          k < sinks ? sink_rope + head * kShape.rope_dim : q + head * kShape.key_dim() + kShape.nope_dim;
      for (int c = 0; c < kShape.rope_dim; ++c) s += static_cast<double>(rope[c]) * row[kShape.latent + c];
      p[static_cast<size_t>(k)] = s * kScale;
    }
    const double max = *std::max_element(p.begin(), p.end());
    double sum = 0;
    for (double& x : p) sum += x = std::exp(x - max);
    for (double& x : p) x /= sum;
    return p;
  }

 private:
  KvCodec codec_;
  size_t row_bytes_;
  std::vector<std::byte> memory_;
  std::vector<float> rows_;
  std::vector<int32_t> pages_;
  std::vector<float> up_;
};

TEST_P(AttentionWeights, OfLatentsAreTheFormulasInBothWays) {
  using P = LatentWeightsOf;
  const LatentShape& shape = P::kShape;
  for (const KvCodec codec : {KvCodec::kF32, KvCodec::kBf16, KvCodec::kMlaFp8}) {
    SCOPED_TRACE(std::string(Name(codec)));
    const P problem(codec);
    ThreadPool pool(2);
    const LatentWeights weights = *LatentWeights::Pack(problem.up(), shape, {.exact = true}, pool);
    constexpr int64_t kTokens = 40, kFirst = 5;
    LatentAttention attention = *LatentAttention::Create(
        {.shape = shape, .scale = P::kScale, .tokens_max = kTokens, .context_tokens_max = kContext, .threads = 2});
    const int64_t q_row = int64_t{shape.heads} * shape.key_dim();
    const int64_t out_row = int64_t{shape.heads} * shape.value_dim;
    const std::vector<float> q = Random(q_row * kTokens, 10);
    const std::vector<float> sink_rope = Random(int64_t{shape.heads} * shape.rope_dim, 11);
    std::vector<float> out(static_cast<size_t>(out_row * kTokens));
    const LatentAttention::Rows rows = {q.data(), q_row, out.data(), out_row};

    for (const int64_t sinks : {0, 4}) {
      const int64_t stride = Attention::WeightsStride(P::kKeys);
      std::vector<float> got(static_cast<size_t>(shape.heads * stride), NAN);
      AttentionSequence one = {0, 1, P::kKeys - 1, problem.pages()};
      one.sinks = sinks;
      one.sink_q = sink_rope.data();
      one.weights = got.data();
      one.weights_stride = stride;
      attention.RunAbsorbed(problem.view(), weights, {{one}}, rows, pool);
      for (int h = 0; h < shape.heads; ++h) {
        const auto want = problem.Weights(h, P::kKeys, sinks, q.data(), sink_rope.data());
        for (size_t k = 0; k < want.size(); ++k) {
          ASSERT_NEAR(got[static_cast<size_t>(h * stride) + k], want[k], 1e-5 + 1e-4 * want[k]) << h << " " << k;
        }
      }
    }

    std::vector<SoftmaxOfRow> softmax(static_cast<size_t>(kTokens * shape.heads));
    AttentionSequence chunk = {0, kTokens, P::kKeys - kTokens, problem.pages()};
    chunk.softmax = softmax.data();
    attention.RunExpanded(problem.view(), weights, {{chunk}}, rows, pool);
    std::vector<float> columns(304);
    attention.AddColumns(problem.view(), weights, chunk, kFirst, rows, columns.data(), pool);
    std::vector<double> want(304);
    for (int64_t t = kFirst; t < kTokens; ++t) {
      for (int h = 0; h < shape.heads; ++h) {
        const auto p = problem.Weights(h, P::kKeys - kTokens + t + 1, 0, q.data() + t * q_row, nullptr);
        for (size_t k = 0; k < p.size(); ++k) want[k] += p[k] / shape.heads;
      }
    }
    for (size_t k = 0; k < want.size(); ++k) ASSERT_NEAR(columns[k], want[k], 1e-5 + 1e-4 * want[k]) << k;
  }
}

INSTANTIATE_TEST_SUITE_P(, AttentionWeights, ::testing::ValuesIn(SupportedIsas()),
                         [](const auto& info) { return std::string(Name(info.param)); });

}  // namespace
}  // namespace sluice
