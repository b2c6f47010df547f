#include "kernels/latent_attention.h"

#include <cmath>
#include <cstring>
#include <numeric>
#include <tuple>

#include "common/rng.h"
#include "gtest/gtest.h"
#include "kernels/isa.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"

namespace sluice {
namespace {

constexpr int kPageTokens = 16;

// Rows of latent and shared key of one sequence, in pages dealt out in reverse; slots not written hold NaN.
class LatentCache {
 public:
  LatentCache(const KvRowShape& shape, KvCodec codec, int64_t tokens) : shape_(shape), codec_(codec) {
    row_bytes_ = Info(codec).code_bytes(shape);
    decoded_.resize(static_cast<size_t>(tokens * shape.width()));
    const auto pages = static_cast<size_t>((tokens + kPageTokens - 1) / kPageTokens);
    memory_.assign(pages * kPageTokens * row_bytes_, std::byte{0xff});
    for (size_t p = pages; p-- > 0;) pages_.push_back(static_cast<int32_t>(p));
  }
  void Write(int64_t token, const float* row) {
    const int width = shape_.width();
    (void)Info(codec_).encode(shape_, row, 1, width, Row(token), nullptr);
    Info(codec_).decode(shape_, Row(token), nullptr, 1, decoded_.data() + token * width, width);
  }
  void Fill(int64_t tokens, uint64_t seed) {
    Rng rng(seed);
    std::vector<float> row(static_cast<size_t>(shape_.width()));
    for (int64_t t = 0; t < tokens; ++t) {
      for (float& x : row) x = static_cast<float>(rng.Uniform() * 4 - 2);
      Write(t, row.data());
    }
  }
  double Element(int64_t token, int channel) const {
    return decoded_[static_cast<size_t>(token * shape_.width() + channel)];
  }
  PagedKv view() const {
    return {.k = {.codes = memory_.data(), .code_bytes = row_bytes_},
            .page_stride_bytes = kPageTokens * row_bytes_,
            .page_tokens = kPageTokens,
            .codec = codec_};
  }
  const int32_t* pages() const { return pages_.data(); }

 private:
  std::byte* Row(int64_t token) {
    const auto page = static_cast<size_t>(pages_[static_cast<size_t>(token / kPageTokens)]);
    return memory_.data() + (page * kPageTokens + static_cast<size_t>(token % kPageTokens)) * row_bytes_;
  }

  KvRowShape shape_;
  KvCodec codec_;
  size_t row_bytes_;
  std::vector<std::byte> memory_;
  std::vector<int32_t> pages_;
  std::vector<float> decoded_;  // [tokens, width]
};

KvRowShape RowOf(const LatentShape& shape) { return {.channels = shape.latent, .rope = shape.rope_dim}; }

struct Problem {
  LatentShape shape;
  float scale;
  std::vector<float> up;  // [heads (nope_dim + value_dim), latent]

  ConstMatrixView up_view() const {
    return {up.data(), DType::kF32, shape.heads * (shape.nope_dim + shape.value_dim), shape.latent,
            static_cast<size_t>(shape.latent) * sizeof(float)};
  }
  int64_t q_row() const { return int64_t{shape.heads} * shape.key_dim(); }
  int64_t out_row() const { return int64_t{shape.heads} * shape.value_dim; }
};

// Weights such that keys and values stay near the latents' size.
Problem RandomProblem(const LatentShape& shape, uint64_t seed) {
  Problem p = {shape, 1.0f / std::sqrt(static_cast<float>(shape.key_dim())), {}};
  Rng rng(seed);
  p.up.resize(static_cast<size_t>(shape.heads * (shape.nope_dim + shape.value_dim) * shape.latent));
  const double size = 1.7 / std::sqrt(static_cast<double>(shape.latent));
  for (float& x : p.up) x = static_cast<float>((rng.Uniform() * 2 - 1) * size);
  return p;
}

std::vector<float> RandomQueries(const Problem& p, int64_t tokens, uint64_t seed) {
  Rng rng(seed);
  std::vector<float> q(static_cast<size_t>(tokens * p.q_row()));
  for (float& x : q) x = static_cast<float>(rng.Uniform() * 4 - 2);
  return q;
}

enum class Way { kExpanded, kAbsorbed };

std::vector<float> Attend(const Problem& p, const LatentCache& cache, const std::vector<AttentionSequence>& sequences,
                          const std::vector<float>& q, Way way, int threads, int64_t context = 4096) {
  ThreadPool pool(threads);
  const int64_t tokens = static_cast<int64_t>(q.size()) / p.q_row();
  const LatentWeights weights = *LatentWeights::Pack(p.up_view(), p.shape, {.exact = true}, pool);
  LatentAttention attention = *LatentAttention::Create(
      {.shape = p.shape, .scale = p.scale, .tokens_max = tokens, .context_tokens_max = context, .threads = threads});
  std::vector<float> out(static_cast<size_t>(tokens * p.out_row()), std::nanf(""));
  const LatentAttention::Rows rows = {q.data(), p.q_row(), out.data(), p.out_row()};
  if (way == Way::kExpanded) {
    attention.RunExpanded(cache.view(), weights, sequences, rows, pool);
  } else {
    attention.RunAbsorbed(cache.view(), weights, sequences, rows, pool);
  }
  return out;
}

// The formula in double: keys and values of every head, then softmax.
std::vector<double> Expected(const Problem& p, const LatentCache& cache, int64_t position, const float* q) {
  const LatentShape& s = p.shape;
  std::vector<double> out(static_cast<size_t>(p.out_row()), 0.0);
  for (int h = 0; h < s.heads; ++h) {
    const float* up = p.up.data() + static_cast<ptrdiff_t>(h) * (s.nope_dim + s.value_dim) * s.latent;
    const auto product = [&](int row, int64_t key) {
      double sum = 0;
      for (int c = 0; c < s.latent; ++c) sum += up[row * s.latent + c] * cache.Element(key, c);
      return sum;
    };
    std::vector<double> weights;
    for (int64_t key = 0; key <= position; ++key) {
      double score = 0;
      for (int i = 0; i < s.nope_dim; ++i) score += q[h * s.key_dim() + i] * product(i, key);
      for (int i = 0; i < s.rope_dim; ++i) {
        score += q[h * s.key_dim() + s.nope_dim + i] * cache.Element(key, s.latent + i);
      }
      weights.push_back(score * p.scale);
    }
    const double max = *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    for (double& w : weights) sum += w = std::exp(w - max);
    for (int64_t key = 0; key <= position; ++key) {
      for (int i = 0; i < s.value_dim; ++i) {
        out[static_cast<size_t>(h * s.value_dim + i)] +=
            weights[static_cast<size_t>(key)] / sum * product(s.nope_dim + i, key);
      }
    }
  }
  return out;
}

class LatentAttentionOn : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override { ASSERT_TRUE(SetIsa(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(SetIsa(SupportedIsas().back()).ok()); }
};

// Values of size 2, sums over at most 300 keys and 512 channels in f32.
TEST_P(LatentAttentionOn, BothWaysAgreeWithTheFormulaWhateverTheShape) {
  const LatentShape shapes[] = {{2, 6, 4, 4, 4}, {4, 32, 16, 24, 24}, {3, 64, 16, 32, 40}, {16, 512, 64, 128, 128}};
  for (const LatentShape& shape : shapes) {
    for (const KvCodec codec : {KvCodec::kF32, KvCodec::kBf16, KvCodec::kF16, KvCodec::kMlaFp8}) {
      if (!Info(codec).check(RowOf(shape)).ok()) continue;
      const Problem p = RandomProblem(shape, 3);
      const int64_t end = shape.latent == 512 ? 40 : 300;
      LatentCache cache(RowOf(shape), codec, end);
      cache.Fill(end, 4);
      const int64_t tokens = 33;
      const std::vector<float> q = RandomQueries(p, tokens, 5);
      for (const Way way : {Way::kExpanded, Way::kAbsorbed}) {
        const std::vector<float> out = Attend(p, cache, {{0, tokens, end - tokens, cache.pages()}}, q, way, 2);
        for (const int64_t t : {int64_t{0}, tokens / 2, tokens - 1}) {
          const std::vector<double> want = Expected(p, cache, end - tokens + t, q.data() + t * p.q_row());
          for (size_t i = 0; i < want.size(); ++i) {
            ASSERT_NEAR(out[static_cast<size_t>(t * p.out_row()) + i], want[i], 2e-5)
                << shape.latent << " " << Name(codec) << " way " << static_cast<int>(way) << " token " << t;
          }
        }
      }
    }
  }
}

TEST_P(LatentAttentionOn, BitsDoNotDependOnChunksBatchOrThreads) {
  const Problem p = RandomProblem({4, 32, 16, 24, 24}, 6);
  const int64_t length = 530;
  LatentCache cache(RowOf(p.shape), KvCodec::kBf16, length);
  cache.Fill(length, 7);
  const std::vector<float> q = RandomQueries(p, length + 100, 8);
  const std::vector<float> mine(q.begin(), q.begin() + length * p.q_row());
  for (const Way way : {Way::kExpanded, Way::kAbsorbed}) {
    const std::vector<float> whole = Attend(p, cache, {{0, length, 0, cache.pages()}}, mine, way, 1);
    const std::vector<float> beside =
        Attend(p, cache, {{length, 100, 60, cache.pages()}, {0, length, 0, cache.pages()}}, q, way, 3);
    EXPECT_EQ(std::memcmp(whole.data(), beside.data(), whole.size() * sizeof(float)), 0) << static_cast<int>(way);
    for (const int64_t chunk : {1, 7, 100}) {
      for (int64_t t = 0; t < length; t += chunk * (chunk == 1 ? 67 : 3)) {
        const int64_t n = std::min(chunk, length - t);
        const std::vector<float> part(mine.begin() + t * p.q_row(), mine.begin() + (t + n) * p.q_row());
        const std::vector<float> out = Attend(p, cache, {{0, n, t, cache.pages()}}, part, way, 2);
        ASSERT_EQ(std::memcmp(out.data(), whole.data() + t * p.out_row(), out.size() * sizeof(float)), 0)
            << "way " << static_cast<int>(way) << ", chunk " << chunk << " at " << t;
      }
    }
  }
}

// A query in the latents' space beyond what f16 holds.
TEST_P(LatentAttentionOn, LargeQueriesStayFiniteInTheLatentsSpace) {
  Problem p = RandomProblem({2, 32, 16, 24, 24}, 9);
  for (float& x : p.up) x *= 1000;
  p.scale = 1e-7f;
  LatentCache cache(RowOf(p.shape), KvCodec::kBf16, 20);
  cache.Fill(20, 10);
  std::vector<float> q = RandomQueries(p, 1, 11);
  for (float& x : q) x *= 1000;
  const std::vector<double> want = Expected(p, cache, 19, q.data());
  for (const Way way : {Way::kExpanded, Way::kAbsorbed}) {
    const std::vector<float> out = Attend(p, cache, {{0, 1, 19, cache.pages()}}, q, way, 1);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(out[i], want[i], 2e-2) << static_cast<int>(way);
  }
}

// Long contexts lose nothing: the weighted mean of so many equal values is that value.
TEST_P(LatentAttentionOn, EqualLatentsOfALongContextAreTheirOwnMean) {
  constexpr int64_t kTokens = 131072;
  const Problem p = RandomProblem({1, 16, 4, 4, 8}, 12);
  const std::vector<float> q = RandomQueries(p, 1, 13);
  for (const KvCodec codec : {KvCodec::kF32, KvCodec::kBf16, KvCodec::kF16, KvCodec::kMlaFp8}) {
    LatentCache cache(RowOf(p.shape), codec, kTokens);
    Rng rng(14);
    std::vector<float> row(20);
    for (int i = 0; i < 16; ++i) row[static_cast<size_t>(i)] = static_cast<float>(i) / 7 - 1;
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int i = 16; i < 20; ++i) row[static_cast<size_t>(i)] = static_cast<float>(rng.Uniform() * 4 - 2);
      cache.Write(t, row.data());
    }
    // With one key alone: what is attended to is its value.
    const std::vector<double> want = Expected(p, cache, 0, q.data());
    for (const Way way : {Way::kExpanded, Way::kAbsorbed}) {
      const std::vector<float> out = Attend(p, cache, {{0, 1, kTokens - 1, cache.pages()}}, q, way, 2, kTokens);
      double error = 0, norm = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        error += std::pow(out[i] - want[i], 2);
        norm += want[i] * want[i];
      }
      EXPECT_LT(std::sqrt(error / norm), 1e-5) << Name(codec) << " way " << static_cast<int>(way);
    }
  }
}

// The worked example in small: hidden 8, two heads, nope, rope and value 4, latent 6, five tokens; weights are sines.
class WorkedExample {
 public:
  static constexpr int kHidden = 8, kHeads = 2, kNope = 4, kRope = 4, kValue = 4, kLatent = 6, kTokens = 5;

  // The attention's output for token `t`. Token i stands at position positions[i].
  std::vector<double> Output(bool interleaved, float scale, Way way, const std::vector<int>& positions, int t) {
    const std::vector<float> x = Sines(1, kTokens * kHidden, 2.0);
    const std::vector<float> wq = Sines(2, kHeads * (kNope + kRope) * kHidden);
    const std::vector<float> wkv = Sines(3, (kLatent + kRope) * kHidden);
    const std::vector<float> wo = Sines(5, kHidden * kHeads * kValue);
    const Problem p = {{kHeads, kLatent, kRope, kNope, kValue}, scale, Sines(4, kHeads * (kNope + kValue) * kLatent)};
    LatentCache cache({.channels = kLatent, .rope = kRope}, KvCodec::kF32, kTokens);
    std::vector<float> q;
    for (int i = 0; i < kTokens; ++i) {
      rows_.push_back(CachedRow(x, wkv, i, positions[static_cast<size_t>(i)], interleaved));
      cache.Write(i, rows_.back().data());
      std::vector<float> row = Product(wq, x, i, kHeads * (kNope + kRope));
      for (int h = 0; h < kHeads; ++h) {
        Rotate(row.data() + h * (kNope + kRope) + kNope, positions[static_cast<size_t>(i)], interleaved);
      }
      q.insert(q.end(), row.begin(), row.end());
    }
    const std::vector<float> attended = Attend(p, cache, {{0, kTokens, 0, cache.pages()}}, q, way, 1);
    std::vector<double> out(kHidden, 0.0);
    for (int r = 0; r < kHidden; ++r) {
      for (int c = 0; c < kHeads * kValue; ++c) {
        out[static_cast<size_t>(r)] +=
            wo[static_cast<size_t>(r * kHeads * kValue + c)] * attended[static_cast<size_t>(t * kHeads * kValue + c)];
      }
    }
    return out;
  }
  const std::vector<float>& row(int t) const { return rows_[static_cast<size_t>(t)]; }

 private:
  static std::vector<float> Sines(int seed, int count, double gain = 1.0) {
    std::vector<float> w;
    for (int k = 0; k < count; ++k) w.push_back(static_cast<float>(gain * 0.5 * std::sin(seed + 0.7 * k)));
    return w;
  }
  static std::vector<float> Product(const std::vector<float>& w, const std::vector<float>& x, int token, int rows) {
    std::vector<float> y(static_cast<size_t>(rows), 0.0f);
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < kHidden; ++c) {
        y[static_cast<size_t>(r)] +=
            w[static_cast<size_t>(r * kHidden + c)] * x[static_cast<size_t>(token * kHidden + c)];
      }
    }
    return y;
  }
  static void Rotate(float* x, int position, bool interleaved) {
    float cos[kRope];
    float sin[kRope];
    RopeAngles({1.0, 0.01}, 1.0, position, interleaved, cos, sin);
    RopeHead(x, cos, sin, kRope, interleaved);
  }
  static std::vector<float> CachedRow(const std::vector<float>& x, const std::vector<float>& w, int token, int position,
                                      bool interleaved) {
    std::vector<float> row = Product(w, x, token, kLatent + kRope);
    std::vector<float> gain;
    for (int j = 0; j < kLatent; ++j) gain.push_back(static_cast<float>(1 + 0.1 * std::cos(j)));
    RmsNormRow(row.data(), gain.data(), kLatent, 1e-6f, row.data());
    Rotate(row.data() + kLatent, position, interleaved);
    return row;
  }

  std::vector<std::vector<float>> rows_;
};

double LargestDifference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

const std::vector<int> kInOrder = {0, 1, 2, 3, 4};
const float kScale = std::sqrt(1.0f / 8);

TEST_P(LatentAttentionOn, GivesTheWorkedExamplesNumbers) {
  const double want_row[] = {.243680, -.871301, -1.441172, -1.356797, -.777677,
                             .221341, .568876,  -2.466606, 1.650303,  .619925};
  const std::vector<double> want = {.786413, .406276, -.156226, -.648603, -.849842, -.669614, -.188818, .376733};
  for (const Way way : {Way::kExpanded, Way::kAbsorbed}) {
    WorkedExample example;
    const std::vector<double> out = example.Output(/*interleaved=*/true, kScale, way, kInOrder, 4);
    for (int i = 0; i < 10; ++i) EXPECT_NEAR(example.row(4)[static_cast<size_t>(i)], want_row[i], 2e-6) << i;
    EXPECT_LT(LargestDifference(out, want), 2e-6) << static_cast<int>(way);
  }
}

// The first token cannot tell: its position is 0.
TEST_P(LatentAttentionOn, AnotherPairingScaleOrOrderShowsFromTheSecondTokenOn) {
  for (const Way way : {Way::kExpanded, Way::kAbsorbed}) {
    const auto right = [way](int t) { return WorkedExample().Output(true, kScale, way, kInOrder, t); };
    EXPECT_LT(LargestDifference(WorkedExample().Output(false, kScale, way, kInOrder, 0), right(0)), 1e-6);
    const std::vector<double> half = WorkedExample().Output(false, kScale, way, kInOrder, 4);
    EXPECT_LT(LargestDifference({half[0], half[1], half[2]}, {.637232, .351183, -.092501}), 2e-6);
    const std::vector<double> scaled = WorkedExample().Output(true, std::sqrt(0.1f), way, kInOrder, 4);
    EXPECT_LT(LargestDifference({scaled[0], scaled[1], scaled[2]}, {.753972, .394762, -.141644}), 2e-6);
    const std::vector<double> shuffled = WorkedExample().Output(true, kScale, way, {2, 0, 3, 1, 4}, 4);
    EXPECT_GT(LargestDifference(shuffled, right(4)), 0.01);
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, LatentAttentionOn, ::testing::ValuesIn(SupportedIsas()),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST(LatentWeights, RefusesBlocksThatCannotBeTransposed) {
  ThreadPool pool(1);
  const std::vector<std::byte> bytes(RowBytes(DType::kQ8_0, 32) * 8);
  const ConstMatrixView up = {bytes.data(), DType::kQ8_0, 8, 32, RowBytes(DType::kQ8_0, 32)};
  const Status status = LatentWeights::Pack(up, {1, 32, 4, 4, 4}, {}, pool).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(status.message()).find("Q8_0"), std::string::npos);
}

// What the memory plan counts is what packing takes, also where heads are no whole tiles.
TEST(LatentWeights, TakeWhatPackedBytesSays) {
  ThreadPool pool(1);
  for (const bool exact : {false, true}) {
    const LatentShape shape = {3, 64, 16, 24, 40};
    const std::vector<uint16_t> values(3 * 64 * 64);
    const ConstMatrixView up = {values.data(), DType::kBf16, 3 * 64, 64, 128};
    const LatentWeights weights = *LatentWeights::Pack(up, shape, {.exact = exact}, pool);
    size_t bytes = 0;
    for (const auto* part : {&weights.key, &weights.key_across, &weights.value}) {
      for (const PackedMatrix& m : *part) bytes += m.bytes();
    }
    EXPECT_EQ(bytes, LatentWeights::PackedBytes(DType::kBf16, shape, {.exact = exact}));
  }
}

}  // namespace
}  // namespace sluice
