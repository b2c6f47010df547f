#include "kernels/attention.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "common/dtype.h"
#include "common/rng.h"
#include "gtest/gtest.h"
#include "kernels/isa.h"
#include "tests/kernels/paged_cache.h"

namespace sluice {
namespace {

std::vector<float> RandomQueries(const AttentionShape& shape, int64_t tokens, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> q(static_cast<size_t>(tokens * shape.heads * shape.key_dim));
  for (float& x : q) x = static_cast<float>(rng.Uniform() * 4 - 2);
  return q;
}

// Attention in double, straight from the formula.
std::vector<double> Expected(const AttentionShape& shape, const PagedCache& cache, size_t sequence, int64_t position,
                             const float* q) {
  std::vector<double> out(static_cast<size_t>(shape.heads * shape.value_dim), 0.0);
  for (int h = 0; h < shape.heads; ++h) {
    const int kv_head = h / (shape.heads / shape.kv_heads);
    std::vector<double> p(static_cast<size_t>(position + 1));
    for (int64_t k = 0; k <= position; ++k) {
      double s = 0;
      for (int c = 0; c < shape.key_dim; ++c)
        s += q[h * shape.key_dim + c] * cache.Element(sequence, k, kv_head, c, false);
      p[static_cast<size_t>(k)] = s * shape.scale;
    }
    const double max = *std::max_element(p.begin(), p.end());
    double sum = 0;
    for (double& x : p) sum += x = std::exp(x - max);
    for (int64_t k = 0; k <= position; ++k) {
      for (int c = 0; c < shape.value_dim; ++c) {
        out[static_cast<size_t>(h * shape.value_dim + c)] +=
            p[static_cast<size_t>(k)] / sum * cache.Element(sequence, k, kv_head, c, true);
      }
    }
  }
  return out;
}

class AttentionOn : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override { ASSERT_TRUE(SetIsa(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(SetIsa(SupportedIsas().back()).ok()); }

  // The rows of `sequences` (token = offset into q), one Run.
  std::vector<float> Run(const AttentionShape& shape, const PagedCache& cache,
                         const std::vector<AttentionSequence>& sequences, const std::vector<float>& q, int threads) {
    const int64_t q_row = int64_t{shape.heads} * shape.key_dim;
    const int64_t out_row = int64_t{shape.heads} * shape.value_dim;
    const int64_t tokens = static_cast<int64_t>(q.size()) / q_row;
    ThreadPool pool(threads);
    int64_t context = 4096;
    for (const AttentionSequence& s : sequences) context = std::max(context, s.start_position + s.tokens);
    Attention attention = *Attention::Create(shape, tokens, context, threads);
    std::vector<float> out(static_cast<size_t>(tokens * out_row), std::numeric_limits<float>::quiet_NaN());
    attention.Run(cache.view(), sequences, q.data(), q_row, out.data(), out_row, pool);
    return out;
  }
};

struct ShapeCase {
  int heads, kv_heads, key_dim, value_dim;
  Values values = Values::kApart;
};
const ShapeCase kShapes[] = {{9, 3, 64, 64},
                             {4, 4, 16, 16},
                             {8, 1, 24, 24},
                             {3, 1, 80, 80},
                             {2, 2, 6, 6},
                             {128, 1, 32, 32},
                             {4, 4, 40, 24},
                             {4, 1, 48, 32, Values::kShared},
                             {16, 1, 576, 512, Values::kShared}};

// With the scale of a key whose products stay near 1, whatever its width.
AttentionShape MakeShape(const ShapeCase& c) {
  return {c.heads, c.kv_heads, c.key_dim, c.value_dim, 1.0f / std::sqrt(static_cast<float>(c.key_dim))};
}

// Whether attention over the shape can read the codec.
bool Reads(KvCodec codec, const ShapeCase& c) {
  if (codec == KvCodec::kMlaFp8) return false;
  if (c.values == Values::kShared && codec > KvCodec::kF16) return false;
  return Info(codec).check({.channels = c.key_dim}).ok() && Info(codec).check({.channels = c.value_dim}).ok();
}

// Against attention over what the rows decode to. Probabilities and values below 2 in magnitude, sums over at most 600
// keys: f32 in any order stays within 1e-5. Where queries are rounded to 16 bits a channel is off by 2^-17 of the
// largest, evenly spread: a score by 2e-5 RMS and a value by no more than ten times that.
TEST_P(AttentionOn, AgreesWithTheFormulaWhateverTheShapeAndCodec) {
  for (const KvCodecInfo& codec : KvCodecs()) {
    double worst = 0;
    const bool integer = codec.rotated && GetParam() != Isa::kPortable;
    for (const ShapeCase& c : kShapes) {
      if (!Reads(codec.codec, c)) continue;
      const AttentionShape shape = MakeShape(c);
      // One sequence in one chunk from 0, one going on within a span, one decoding across three spans, one single
      // token.
      const PagedCache cache(shape, {.codec = codec.codec, .values = c.values, .seed = 7}, {40, 300, 600, 1});
      const std::vector<AttentionSequence> sequences = {{0, 40, 0, cache.pages(0)},
                                                        {40, 57, 243, cache.pages(1)},
                                                        {97, 1, 599, cache.pages(2)},
                                                        {98, 1, 0, cache.pages(3)}};
      const std::vector<float> q = RandomQueries(shape, 99, 8);
      const std::vector<float> out = Run(shape, cache, sequences, q, 2);
      const int64_t q_row = int64_t{c.heads} * c.key_dim;
      const int64_t row = int64_t{c.heads} * c.value_dim;
      for (size_t s = 0; s < sequences.size(); ++s) {
        for (int64_t t = 0; t<sequences[s].tokens; t += sequences[s].tokens> 1 ? 13 : 1) {
          const int64_t token = sequences[s].token + t;
          const int64_t at = token * row;
          const std::vector<double> want =
              Expected(shape, cache, s, sequences[s].start_position + t, q.data() + token * q_row);
          for (int64_t i = 0; i < row; ++i) {
            const double error = std::abs(out[static_cast<size_t>(at + i)] - want[static_cast<size_t>(i)]);
            worst = std::max(worst, error);
            ASSERT_LT(error, integer ? 2e-4 : 1e-5)
                << c.heads << "/" << c.kv_heads << "/" << c.key_dim << " " << codec.name << " sequence " << s
                << " token " << t << " element " << i;
          }
        }
      }
    }
    RecordProperty("worst_error_" + std::to_string(codec.wire_code), std::to_string(worst));
  }
}

// Where rows lie changes nothing, and neither does what lies behind them.
TEST_P(AttentionOn, BitsDoNotDependOnPages) {
  const AttentionShape shape = MakeShape({8, 2, 64, 64});
  const std::vector<float> q = RandomQueries(shape, 20, 13);
  for (const KvCodecInfo& codec : KvCodecs()) {
    if (codec.codec == KvCodec::kMlaFp8) continue;
    std::vector<float> first;
    for (const auto& [page_tokens, padding] : {std::pair{16, 0}, {1, 0}, {3, 12}, {64, 0}, {256, 4096}}) {
      const PagedCache cache(
          shape, {.codec = codec.codec, .page_tokens = page_tokens, .padding_bytes = static_cast<size_t>(padding)},
          {540});
      const std::vector<float> out = Run(shape, cache, {{0, 20, 520, cache.pages(0)}}, q, 2);
      if (first.empty()) first = out;
      EXPECT_EQ(out, first) << codec.name << " in pages of " << page_tokens;
    }
  }
}

// Whatever the shape, where a chunk begins and ends, and how many rows share a pass: the portable code's result.
TEST_P(AttentionOn, RandomShapesAgreeWithThePortableCode) {
  Rng rng(17);
  const auto between = [&rng](int low, int high) {
    return low + static_cast<int>(rng.Bits() % static_cast<uint64_t>(high - low + 1));
  };
  for (int i = 0; i < 40; ++i) {
    const int kv_heads = between(1, 4);
    const ShapeCase c = {kv_heads * between(1, 9), kv_heads, 16 * between(1, 10), 16 * between(1, 10)};
    const AttentionShape shape = MakeShape(c);
    const int64_t keys = between(1, 700);
    const int64_t tokens = rng.Bits() % 2 == 0 ? 1 : between(1, static_cast<int>(std::min<int64_t>(keys, 60)));
    for (const KvCodecInfo& codec : KvCodecs()) {
      if (!Reads(codec.codec, c)) continue;
      SCOPED_TRACE(absl::StrCat(std::string(codec.name), ", ", c.heads, " heads over ", kv_heads, " of ", c.key_dim,
                                " and ", c.value_dim, ", ", tokens, " tokens of ", keys));
      const PagedCache cache(shape, {.codec = codec.codec, .seed = static_cast<uint64_t>(i)}, {keys});
      const std::vector<float> q = RandomQueries(shape, tokens, static_cast<uint64_t>(i));
      const std::vector<AttentionSequence> sequences = {{0, tokens, keys - tokens, cache.pages(0)}};
      const std::vector<float> out = Run(shape, cache, sequences, q, 2);
      ASSERT_TRUE(SetIsa(Isa::kPortable).ok());
      const std::vector<float> want = Run(shape, cache, sequences, q, 1);
      ASSERT_TRUE(SetIsa(GetParam()).ok());
      for (size_t e = 0; e < want.size(); ++e) ASSERT_NEAR(out[e], want[e], codec.rotated ? 2e-4 : 1e-5) << e;
    }
  }
}

TEST_P(AttentionOn, BitsDoNotDependOnChunksBatchOrThreads) {
  const std::vector<std::pair<ShapeCase, KvCodec>> cases = {
      {{9, 3, 64, 64}, KvCodec::kBf16}, {{8, 1, 24, 24}, KvCodec::kBf16},
      {{4, 4, 16, 16}, KvCodec::kBf16}, {{4, 1, 48, 32, Values::kShared}, KvCodec::kBf16},
      {{9, 3, 64, 64}, KvCodec::kF32},  {{9, 3, 64, 64}, KvCodec::kF16},
      {{9, 3, 64, 64}, KvCodec::kFp8},  {{9, 3, 64, 64}, KvCodec::kInt8},
      {{9, 3, 64, 64}, KvCodec::kInt4}, {{8, 1, 128, 128}, KvCodec::kInt8},
      {{4, 4, 80, 80}, KvCodec::kInt8}, {{8, 1, 96, 96}, KvCodec::kInt4}};
  for (const auto& [c, codec] : cases) {
    SCOPED_TRACE(Name(codec));
    const AttentionShape shape = MakeShape(c);
    const int64_t length = 530;
    const PagedCache cache(shape, {.codec = codec, .values = c.values, .seed = 9}, {length, 300});
    const int64_t q_row = int64_t{c.heads} * c.key_dim;
    const int64_t row = int64_t{c.heads} * c.value_dim;
    const std::vector<float> q = RandomQueries(shape, length + 300, 10);
    const std::vector<float> mine(q.begin(), q.begin() + length * q_row);
    const std::vector<float> whole = Run(shape, cache, {{0, length, 0, cache.pages(0)}}, mine, 1);
    const std::vector<float> beside =
        Run(shape, cache, {{length, 300, 0, cache.pages(1)}, {0, length, 0, cache.pages(0)}}, q, 3);
    EXPECT_EQ(std::memcmp(whole.data(), beside.data(), whole.size() * sizeof(float)), 0) << c.heads;
    for (const int64_t chunk : {1, 7, 64}) {
      for (const int threads : {1, 2}) {
        for (int64_t t = 0; t < length; t += chunk * (chunk == 1 ? 31 : 5)) {
          const int64_t n = std::min(chunk, length - t);
          const std::vector<float> part(mine.begin() + t * q_row, mine.begin() + (t + n) * q_row);
          const std::vector<float> out = Run(shape, cache, {{0, n, t, cache.pages(0)}}, part, threads);
          ASSERT_EQ(std::memcmp(out.data(), whole.data() + t * row, out.size() * sizeof(float)), 0)
              << c.heads << " heads, chunk " << chunk << " at " << t << ", " << threads << " threads";
        }
      }
    }
  }
}

// Scores near the largest f32 and far below: neither overflows, and the sum never vanishes.
TEST_P(AttentionOn, HugeScoresKeepTheSoftmaxFinite) {
  const AttentionShape shape = {1, 1, 16, 16, 1e6f};
  const PagedCache cache(shape, {.codec = KvCodec::kF32, .seed = 11}, {520});
  const std::vector<float> out = Run(shape, cache, {{0, 1, 519, cache.pages(0)}}, RandomQueries(shape, 1, 12), 2);
  for (const float x : out) EXPECT_LE(std::abs(x), 2.0f);
}

// Long contexts lose nothing: the weighted mean of so many equal values is that value.
TEST_P(AttentionOn, EqualValuesOfALongContextAreTheirOwnMean) {
  constexpr int64_t kTokens = 131072;
  const AttentionShape shape = MakeShape({1, 1, 32, 32});
  const std::vector<float> q = RandomQueries(shape, 1, 14);
  for (const KvCodecInfo& codec : KvCodecs()) {
    if (codec.codec == KvCodec::kMlaFp8) continue;
    PagedCache cache(shape, {.codec = codec.codec, .page_tokens = 256}, {kTokens});
    std::vector<float> v(32);
    for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i) / 7 - 2;
    for (int64_t t = 0; t < kTokens; ++t) cache.Write(0, t, 0, true, v.data());
    const std::vector<float> out = Run(shape, cache, {{0, 1, kTokens - 1, cache.pages(0)}}, q, 2);
    double error = 0, norm = 0;
    for (int c = 0; c < 32; ++c) {
      const double want = cache.Element(0, 0, 0, c, true);
      error += std::pow(out[static_cast<size_t>(c)] - want, 2);
      norm += want * want;
    }
    EXPECT_LT(std::sqrt(error / norm), 1e-5) << codec.name;
  }
}

// A scale is what multiplies, whatever its size: half the codes at twice the scale are the same row.
TEST_P(AttentionOn, HalfTheCodesAtTwiceTheScaleAreTheSameRow) {
  const AttentionShape shape = MakeShape({4, 2, 64, 64});
  const std::vector<float> q = RandomQueries(shape, 3, 15);
  for (const KvCodec codec : {KvCodec::kFp8, KvCodec::kInt8, KvCodec::kInt4}) {
    PagedCache cache(shape, {.codec = codec}, {300});
    std::vector<float> out[2];
    for (const bool halve : {false, true}) {
      for (int64_t t = 0; t < 300; ++t) {
        for (const int row : {0, 1, 2, 3}) {
          std::byte* codes = cache.Codes(0, t, row / 2, row % 2 == 1);
          std::byte* scales = cache.Scales(0, t, row / 2, row % 2 == 1);
          for (int i = 0; i < (codec == KvCodec::kInt4 ? 32 : 64); ++i) {
            auto code = static_cast<int>(static_cast<int8_t>(codes[i]));
            // First to codes that can be halved, then halved.
            if (codec == KvCodec::kFp8) code = halve ? code - 8 : (code & 0x80) | std::max(code & 0x7F, 0x10);
            if (codec == KvCodec::kInt8) code = halve ? code / 2 : code & ~1;
            if (codec == KvCodec::kInt4) {
              const auto half = [](int nibble) { return (nibble - 8) / 2 + 8; };
              code = halve ? half(code & 15) | half(code >> 4 & 15) << 4 : code & 0xEE;
            }
            codes[i] = static_cast<std::byte>(code);
          }
          if (!halve) continue;
          if (codec == KvCodec::kInt4) {
            for (int g = 0; g < 2; ++g) {
              auto* scale = reinterpret_cast<uint16_t*>(scales) + g;
              *scale = F32ToF16(2 * F16ToF32(*scale));
            }
          } else {
            *reinterpret_cast<float*>(scales) *= 2;
          }
        }
      }
      out[halve ? 1 : 0] = Run(shape, cache, {{0, 3, 297, cache.pages(0)}}, q, 1);
    }
    EXPECT_EQ(out[0], out[1]) << Name(codec);
  }
}

// All codes at their largest, of both signs, and queries whose channels are all alike once rotated: sums of products
// are as large as they can be.
TEST_P(AttentionOn, TheLargestCodesOverflowNoSum) {
  for (const KvCodec codec : {KvCodec::kInt8, KvCodec::kInt4}) {
    for (const int dim : {32, 128, 512, 1024}) {
      SCOPED_TRACE(absl::StrCat(std::string(Name(codec)), " of ", dim));
      const AttentionShape shape = {4, 1, dim, dim, 1.0f};
      constexpr int64_t kTokens = 256;
      PagedCache cache(shape, {.codec = codec}, {kTokens});
      // The first half of the keys are the largest, the others the smallest; values all alike.
      const bool int8 = codec == KvCodec::kInt8;
      for (int64_t t = 0; t < kTokens; ++t) {
        for (const bool value : {false, true}) {
          const bool largest = value || t < kTokens / 2;
          std::byte* codes = cache.Codes(0, t, 0, value);
          const auto code = static_cast<std::byte>(int8 ? (largest ? 127 : -127) : (largest ? 0xff : 0x11));
          std::fill(codes, codes + (int8 ? dim : dim / 2), code);
          std::byte* scales = cache.Scales(0, t, 0, value);
          if (int8) *reinterpret_cast<float*>(scales) = 1.0f / 127;
          for (int g = 0; !int8 && g < dim / 32; ++g) reinterpret_cast<uint16_t*>(scales)[g] = F32ToF16(0.125f);
        }
      }
      // A row of ones, and q, are one channel before they are rotated.
      const float one = (int8 ? 1.0f : 7 * 0.125f) * std::sqrt(static_cast<float>(dim));
      std::vector<float> q(static_cast<size_t>(4 * dim), 0.0f);
      for (int h = 0; h < 4; ++h) q[static_cast<size_t>(h * dim)] = static_cast<float>(h - 2) / one;
      AttentionSequence sequence = {0, 1, kTokens - 1, cache.pages(0)};
      std::vector<float> weights(static_cast<size_t>(4 * Attention::WeightsStride(kTokens)));
      sequence.weights = weights.data();
      sequence.weights_stride = Attention::WeightsStride(kTokens);
      const std::vector<float> out = Run(shape, cache, {sequence}, q, 1);
      for (int h = 0; h < 4; ++h) {
        const double score = h - 2;
        const double largest = std::exp(score) / (std::exp(score) + std::exp(-score)) / (kTokens / 2);
        EXPECT_NEAR(weights[static_cast<size_t>(h * sequence.weights_stride)], largest, 1e-4 * largest);
        for (int c = 0; c < dim; ++c)
          ASSERT_NEAR(out[static_cast<size_t>(h * dim + c)], c == 0 ? one : 0.0f, 1e-5 * one) << h << " " << c;
      }
    }
  }
}

// A poisoned row can never look like an answer to those who see it, and is nothing to those who do not.
TEST_P(AttentionOn, PoisonedRowsReachThoseWhoSeeThemOnly) {
  const AttentionShape shape = MakeShape({2, 1, 64, 64});
  const std::vector<float> q = RandomQueries(shape, 40, 16);
  const std::vector<float> bad(64, std::numeric_limits<float>::infinity());
  for (const KvCodecInfo& codec : KvCodecs()) {
    for (const bool value : {false, true}) {
      if (codec.codec == KvCodec::kMlaFp8) continue;
      PagedCache cache(shape, {.codec = codec.codec}, {40});
      cache.Write(0, 25, 0, value, bad.data());
      const std::vector<float> out = Run(shape, cache, {{0, 40, 0, cache.pages(0)}}, q, 1);
      for (size_t i = 0; i < out.size(); ++i) {
        // An infinite key gives infinite scores of either sign; beside them nothing else counts, or it does.
        if (i / 128 >= 25 && !value && codec.codec <= KvCodec::kF16) continue;
        EXPECT_EQ(std::isfinite(out[i]), i / 128 < 25) << codec.name << " token " << i / 128;
      }
    }
  }
}

TEST_P(AttentionOn, QueriesOfNothingAverageAndThoseOfNansAreNan) {
  const AttentionShape shape = MakeShape({1, 1, 32, 32});
  for (const KvCodec codec : {KvCodec::kF32, KvCodec::kFp8, KvCodec::kInt8, KvCodec::kInt4}) {
    const PagedCache cache(shape, {.codec = codec}, {9});
    std::vector<float> q(64, 0.0f);
    q[40] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> out = Run(shape, cache, {{0, 1, 8, cache.pages(0)}, {1, 1, 8, cache.pages(0)}}, q, 1);
    for (int c = 0; c < 32; ++c) {
      double mean = 0;
      for (int64_t t = 0; t < 9; ++t) mean += cache.Element(0, t, 0, c, true) / 9;
      EXPECT_NEAR(out[static_cast<size_t>(c)], mean, 1e-6) << Name(codec);
      EXPECT_TRUE(std::isnan(out[static_cast<size_t>(32 + c)])) << Name(codec);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, AttentionOn, ::testing::ValuesIn(SupportedIsas()),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST(Attention, RefusesHeadsThatDoNotDivide) {
  EXPECT_EQ(Attention::Create({6, 4, 16, 16, 1}, 1, 16, 1).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sluice
