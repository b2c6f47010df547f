#include "kernels/attention.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "common/rng.h"
#include "gtest/gtest.h"
#include "kernels/convert.h"
#include "kernels/isa.h"

namespace sluice {
namespace {

constexpr int kPageTokens = 16;

// Whether V has rows of its own, or a value is the first part of its key.
enum class Values { kApart, kShared };

// Some sequences' K and V in pages that are dealt out in a shuffled order; every slot not written holds NaN.
class PagedCache {
 public:
  PagedCache(const AttentionShape& shape, Values values, DType type, std::vector<int64_t> lengths, uint64_t seed)
      : shape_(shape), type_(type), lengths_(std::move(lengths)), rng_(seed) {
    k_row_bytes_ = RowBytes(type, static_cast<size_t>(shape.key_dim));
    v_row_bytes_ = values == Values::kShared ? k_row_bytes_ : RowBytes(type, static_cast<size_t>(shape.value_dim));
    const size_t rows = static_cast<size_t>(shape.kv_heads) * kPageTokens;
    v_offset_ = values == Values::kShared ? 0 : k_row_bytes_ * rows;
    page_bytes_ = v_offset_ + v_row_bytes_ * rows;
    int pages = 3;
    for (const int64_t n : lengths_) pages += static_cast<int>((n + kPageTokens - 1) / kPageTokens);
    memory_.assign(page_bytes_ * static_cast<size_t>(pages), std::byte{0xff});  // NaN in both types
    std::vector<int32_t> order(static_cast<size_t>(pages));
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[rng_.Bits() % (i + 1)]);
    for (const int64_t n : lengths_) {
      std::vector<int32_t> mine;
      for (int64_t t = 0; t < n; t += kPageTokens) {
        mine.push_back(order.back());
        order.pop_back();
      }
      pages_.push_back(mine);
      for (int64_t t = 0; t < n; ++t) WriteToken(pages_.size() - 1, t);
    }
  }

  PagedKv view() const {
    return {.k = memory_.data(),
            .v = memory_.data() + v_offset_,
            .k_row_bytes = k_row_bytes_,
            .v_row_bytes = v_row_bytes_,
            .page_stride_bytes = page_bytes_,
            .page_tokens = kPageTokens,
            .type = type_};
  }
  const int32_t* pages(size_t sequence) const { return pages_[sequence].data(); }

  double Element(size_t sequence, int64_t token, int head, int channel, bool value) const {
    const std::byte* row = memory_.data() + Row(sequence, token, head, value);
    if (type_ == DType::kF32) return reinterpret_cast<const float*>(row)[channel];
    return Bf16ToF32(reinterpret_cast<const uint16_t*>(row)[channel]);
  }

 private:
  size_t Row(size_t sequence, int64_t token, int head, bool value) const {
    const auto page = static_cast<size_t>(pages_[sequence][static_cast<size_t>(token / kPageTokens)]);
    const auto row = static_cast<size_t>(token % kPageTokens * shape_.kv_heads + head);
    return page * page_bytes_ + (value ? v_offset_ + row * v_row_bytes_ : row * k_row_bytes_);
  }

  void WriteToken(size_t sequence, int64_t token) {
    for (int head = 0; head < shape_.kv_heads; ++head) {
      WriteRow(shape_.key_dim, Row(sequence, token, head, false));
      if (v_offset_ > 0) WriteRow(shape_.value_dim, Row(sequence, token, head, true));
    }
  }

  void WriteRow(int channels, size_t at) {
    std::vector<float> row(static_cast<size_t>(channels));
    for (float& x : row) x = static_cast<float>(rng_.Uniform() * 4 - 2);
    ConvertRow(row.data(), channels, type_, memory_.data() + at);
  }

  AttentionShape shape_;
  DType type_;
  std::vector<int64_t> lengths_;
  Rng rng_;
  size_t k_row_bytes_;
  size_t v_row_bytes_;
  size_t v_offset_;
  size_t page_bytes_;
  std::vector<std::byte> memory_;
  std::vector<std::vector<int32_t>> pages_;
};

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
    Attention attention = *Attention::Create(shape, tokens, 4096, threads);
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

// Probabilities and values below 2 in magnitude, sums over at most 600 keys: f32 in any order stays within 1e-5.
TEST_P(AttentionOn, AgreesWithTheFormulaWhateverTheShape) {
  double worst = 0;
  for (const ShapeCase& c : kShapes) {
    for (const DType type : {DType::kF32, DType::kBf16}) {
      const AttentionShape shape = MakeShape(c);
      // One sequence in one chunk from 0, one going on within a span, one decoding across three spans, one single
      // token.
      const std::vector<int64_t> lengths = {40, 300, 600, 1};
      const PagedCache cache(shape, c.values, type, lengths, 7);
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
            ASSERT_LT(error, 1e-5) << c.heads << "/" << c.kv_heads << "/" << c.key_dim << " " << Traits(type).name
                                   << " sequence " << s << " token " << t << " element " << i;
          }
        }
      }
    }
  }
  RecordProperty("worst_error", std::to_string(worst));
}

TEST_P(AttentionOn, BitsDoNotDependOnChunksBatchOrThreads) {
  for (const ShapeCase& c : {ShapeCase{9, 3, 64, 64}, ShapeCase{8, 1, 24, 24}, ShapeCase{4, 4, 16, 16},
                             ShapeCase{4, 1, 48, 32, Values::kShared}}) {
    const AttentionShape shape = MakeShape(c);
    const int64_t length = 530;
    const PagedCache cache(shape, c.values, DType::kBf16, {length, 300}, 9);
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
  const PagedCache cache(shape, Values::kApart, DType::kF32, {520}, 11);
  const std::vector<float> out = Run(shape, cache, {{0, 1, 519, cache.pages(0)}}, RandomQueries(shape, 1, 12), 2);
  for (const float x : out) EXPECT_LE(std::abs(x), 2.0f);
}

INSTANTIATE_TEST_SUITE_P(Isas, AttentionOn, ::testing::ValuesIn(SupportedIsas()),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST(Attention, RefusesHeadsThatDoNotDivide) {
  EXPECT_EQ(Attention::Create({6, 4, 16, 16, 1}, 1, 16, 1).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sluice
