// One suite for all codecs on all instruction sets: golden bytes, and the rules behind them one by one.
#include "kernels/codec/codec.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "common/dtype.h"
#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/codec/hadamard.h"
#include "kernels/isa.h"
#include "kernels/simd_kernels.h"
#include "tests/kernels/codec_goldens.h"

namespace sluice {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Both planes of some rows, with bytes behind each that nobody may touch.
class Planes {
 public:
  Planes(KvCodec codec, const KvRowShape& shape, int64_t rows)
      : info_(&Info(codec)),
        shape_(shape),
        rows_(rows),
        codes_(static_cast<size_t>(rows) * info_->code_bytes(shape) + kGuard, std::byte{0xA5}),
        scales_(static_cast<size_t>(rows) * info_->scale_bytes(shape) + kGuard, std::byte{0xA5}) {}

  KvCodecCounts Encode(const float* x, int64_t stride) {
    return info_->encode(shape_, x, rows_, stride, codes_.data(), scales_.data());
  }
  std::vector<float> Decode(int64_t stride) const {
    std::vector<float> x(static_cast<size_t>(rows_ * stride), -1.0f);
    info_->decode(shape_, codes_.data(), scales_.data(), rows_, x.data(), stride);
    return x;
  }
  int64_t CountNonfinite() const { return info_->count_nonfinite(shape_, codes_.data(), scales_.data(), rows_); }

  void Load(const std::vector<std::byte>& body) {
    std::copy(body.begin(), body.begin() + static_cast<ptrdiff_t>(CodesSize()), codes_.begin());
    std::copy(body.begin() + static_cast<ptrdiff_t>(CodesSize()), body.end(), scales_.begin());
  }
  std::vector<std::byte> Body() const {
    std::vector<std::byte> body(codes_.begin(), codes_.end() - kGuard);
    body.insert(body.end(), scales_.begin(), scales_.end() - kGuard);
    return body;
  }
  bool GuardsHold() const {
    const auto whole = [](const std::vector<std::byte>& plane) {
      return std::all_of(plane.end() - kGuard, plane.end(), [](std::byte b) { return b == std::byte{0xA5}; });
    };
    return whole(codes_) && whole(scales_);
  }
  template <typename T>
  T Code(size_t i) const {
    T value;
    std::memcpy(&value, codes_.data() + i * sizeof(T), sizeof(T));
    return value;
  }
  template <typename T>
  T Scale(size_t i) const {
    T value;
    std::memcpy(&value, scales_.data() + i * sizeof(T), sizeof(T));
    return value;
  }

 private:
  static constexpr ptrdiff_t kGuard = 64;
  size_t CodesSize() const { return codes_.size() - kGuard; }

  const KvCodecInfo* info_;
  KvRowShape shape_;
  int64_t rows_;
  std::vector<std::byte> codes_;
  std::vector<std::byte> scales_;
};

bool SameFloat(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

std::vector<float> Gaussian(size_t size, uint64_t seed, float deviation = 1) {
  Rng rng(seed);
  std::vector<float> x(size);
  for (float& v : x) {
    v = deviation * static_cast<float>(std::sqrt(-2 * std::log(1 - rng.Uniform())) *
                                       std::cos(2 * 3.14159265358979 * rng.Uniform()));
  }
  return x;
}

// Relative error of b in L2 over the elements that `counts` keeps.
template <typename Keep>
double RelativeError(const std::vector<float>& a, const std::vector<float>& b, Keep keep) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!keep(i)) continue;
    error += (a[i] - b[i]) * (a[i] - b[i]);
    norm += a[i] * a[i];
  }
  return std::sqrt(error / norm);
}

// A shape each codec takes.
KvRowShape ShapeFor(KvCodec codec) {
  return codec == KvCodec::kMlaFp8 ? KvRowShape{.channels = 192, .rope = 32} : KvRowShape{.channels = 96};
}

class CodecOn : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override { ASSERT_TRUE(SetIsa(GetParam()).ok()); }
  void TearDown() override { ASSERT_TRUE(SetIsa(SupportedIsas().back()).ok()); }
  const CodecKernels& kernels() const { return ActiveKernels().codec; }

  // E4M3 codes of any number of values.
  std::vector<uint8_t> ToFp8(std::vector<float> x) const {
    const size_t size = x.size();
    x.resize((size + 15) / 16 * 16);
    std::vector<uint8_t> codes(x.size());
    kernels().to_fp8(x.data(), static_cast<int>(x.size()), 1.0f, codes.data());
    codes.resize(size);
    return codes;
  }
};

TEST_P(CodecOn, GoldenInputsBecomeTheGoldenBytesAndCounts) {
  ASSERT_GT(CodecCases().size(), 80u);
  for (const CodecCase& c : CodecCases()) {
    SCOPED_TRACE(testing::Message() << Name(c.codec) << " " << c.input);
    Planes planes(c.codec, c.shape, c.rows);
    const KvCodecCounts counts = planes.Encode(c.x.data(), c.shape.width());
    EXPECT_EQ(counts.nonfinite_rows, c.counts.nonfinite_rows);
    EXPECT_EQ(counts.saturated, c.counts.saturated);
    EXPECT_EQ(planes.CountNonfinite(), c.counts.nonfinite_rows);
    EXPECT_TRUE(planes.GuardsHold());
    const std::vector<std::byte> body = planes.Body();
    ASSERT_EQ(body.size(), c.encoded.size());
    for (size_t i = 0; i < body.size(); ++i) {
      ASSERT_EQ(std::to_integer<int>(body[i]), std::to_integer<int>(c.encoded[i])) << "byte " << i;
    }
  }
}

TEST_P(CodecOn, GoldenBytesDecodeToTheGoldenFloats) {
  for (const CodecCase& c : CodecCases()) {
    Planes planes(c.codec, c.shape, c.rows);
    planes.Load(c.encoded);
    const std::vector<float> x = planes.Decode(c.shape.width());
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_TRUE(SameFloat(x[i], c.decoded[i]))
          << Name(c.codec) << " " << c.input << " element " << i << ": " << x[i] << ", expected " << c.decoded[i];
    }
  }
}

// Also with rows that lie apart, and on the way back between the rows nothing is written.
TEST_P(CodecOn, ARowsBytesDoNotDependOnTheOthers) {
  for (const CodecCase& c : CodecCases()) {
    SCOPED_TRACE(testing::Message() << Name(c.codec) << " " << c.input);
    const int width = c.shape.width();
    const int64_t stride = width + 5;
    std::vector<float> apart(static_cast<size_t>(c.rows * stride), kNan);
    for (int64_t r = 0; r < c.rows; ++r) {
      std::copy_n(c.x.begin() + r * width, width, apart.begin() + r * stride);
      Planes alone(c.codec, c.shape, 1);
      alone.Encode(c.x.data() + r * width, width);
      const size_t code_bytes = Info(c.codec).code_bytes(c.shape);
      ASSERT_EQ(std::memcmp(alone.Body().data(), c.encoded.data() + static_cast<size_t>(r) * code_bytes, code_bytes), 0)
          << "row " << r;
    }
    Planes planes(c.codec, c.shape, c.rows);
    planes.Encode(apart.data(), stride);
    ASSERT_EQ(planes.Body(), c.encoded);
    const std::vector<float> x = planes.Decode(stride);
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int i = 0; i < stride; ++i) {
        const float want = i < width ? c.decoded[static_cast<size_t>(r * width + i)] : -1.0f;
        ASSERT_TRUE(SameFloat(x[static_cast<size_t>(r * stride + i)], want)) << "row " << r << " element " << i;
      }
    }
  }
}

TEST_P(CodecOn, FormatsRoundAsTheGoldenVectors) {
  const auto goldens = ReadSafetensors("formats.safetensors");
  for (const auto& [name, convert] : {std::pair{"bf16", kernels().to_bf16}, std::pair{"f16", kernels().to_f16}}) {
    const auto x = goldens.at(std::string(name) + "_encode/x").as<float>();
    const auto want = goldens.at(std::string(name) + "_encode/code").as<uint16_t>();
    std::vector<uint16_t> codes(x.size());
    convert(x.data(), static_cast<int64_t>(x.size()), codes.data());
    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(codes[i], want[i]) << name << " of " << x[i];
  }
  const auto x = goldens.at("e4m3_encode/x").as<float>();
  const auto want = goldens.at("e4m3_encode/code").as<uint8_t>();
  const std::vector<uint8_t> codes = ToFp8(x);
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(codes[i], want[i]) << "E4M3 of " << x[i];
    ASSERT_EQ(F32ToE4m3(x[i]), want[i]) << "E4M3 of " << x[i];
  }
}

// Known codes; also what reports of other engines' casts ask for: saturation only beyond 448, ties to even.
TEST_P(CodecOn, E4m3RoundsToEvenAndSaturates) {
  const std::vector<std::pair<float, int>> cases = {{0x1p-10f, 0x00},
                                                    {0x1p-10f * 1.000001f, 0x01},
                                                    {1.5f * 0x1p-9f, 0x02},
                                                    {2.5f * 0x1p-9f, 0x02},
                                                    {7.5f * 0x1p-9f, 0x08},
                                                    {1.0625f, 0x38},
                                                    {1.1875f, 0x3A},
                                                    {17, 0x58},
                                                    {19, 0x5A},
                                                    {21, 0x5A},
                                                    {248, 0x78},
                                                    {264, 0x78},
                                                    {272, 0x78},
                                                    {304, 0x7A},
                                                    {431.9f, 0x7D},
                                                    {432, 0x7E},
                                                    {449, 0x7E},
                                                    {464, 0x7E},
                                                    {465, 0x7E},
                                                    {480, 0x7E},
                                                    {1e5f, 0x7E},
                                                    {3.4e38f, 0x7E},
                                                    {kInfinity, 0x7E},
                                                    {-kInfinity, 0xFE},
                                                    {kNan, 0x7F},
                                                    {-0.0f, 0x80},
                                                    {-0.1f, 0x9D},
                                                    {1.0f / 3, 0x2B},
                                                    {3.14159265f, 0x45},
                                                    {0.0f, 0x00},
                                                    {1e-45f, 0x00},
                                                    {-1e-45f, 0x80}};
  std::vector<float> x;
  for (const auto& [value, code] : cases) x.push_back(value);
  const std::vector<uint8_t> codes = ToFp8(x);
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(codes[i], cases[i].second) << "of " << x[i];
    EXPECT_EQ(F32ToE4m3(x[i]), cases[i].second) << "of " << x[i];
  }
}

// All 256 codes against the formula; NaN at 7F and FF only, subnormals and signed zeros kept.
TEST_P(CodecOn, E4m3DecodesEveryCodeAsTheFormulaSays) {
  std::vector<uint8_t> codes(256);
  std::iota(codes.begin(), codes.end(), uint8_t{0});
  std::vector<float> x(256);
  kernels().from_fp8(codes.data(), 256, 1.0f, x.data());
  const auto golden = ReadSafetensors("formats.safetensors").at("e4m3_decode/value").as<float>();
  for (int code = 0; code < 256; ++code) {
    const int e = (code >> 3) & 15;
    const int m = code & 7;
    const double magnitude = e == 0 ? m * 0x1p-9 : (1 + m / 8.0) * std::ldexp(1.0, e - 7);
    const float want = (code & 0x7F) == 0x7F ? kNan : static_cast<float>((code & 0x80) != 0 ? -magnitude : magnitude);
    const auto i = static_cast<size_t>(code);
    EXPECT_TRUE(SameFloat(x[i], want)) << code << ": " << x[i];
    EXPECT_TRUE(SameFloat(E4m3ToF32(codes[i]), want)) << code;
    EXPECT_TRUE(SameFloat(golden[i], want)) << code;
  }
}

// The published 656 bytes of a latent row.
TEST_P(CodecOn, MlaRowOf656BytesIsTheKnownOne) {
  std::vector<float> x(576);
  for (int i = 0; i < 512; ++i)
    x[static_cast<size_t>(i)] = Bf16ToF32(F32ToBf16(static_cast<float>(std::sin(.37 * i) * (1 + i / 64.0))));
  for (int i = 0; i < 64; ++i) x[static_cast<size_t>(512 + i)] = static_cast<float>(std::cos(.11 * i));
  const KvRowShape shape = {.channels = 512, .rope = 64};
  ASSERT_EQ(Info(KvCodec::kMlaFp8).code_bytes(shape), 656u);
  Planes planes(KvCodec::kMlaFp8, shape, 1);
  planes.Encode(x.data(), 576);
  const std::vector<float> scales = {0x1p-7f, 0x1p-6f, 0x1p-6f, 0x1p-5f};
  for (size_t tile = 0; tile < 4; ++tile) EXPECT_EQ(planes.Code<float>(128 + tile), scales[tile]);
  uint32_t crc = 0xFFFFFFFFu;
  for (size_t i = 0; i < 656; ++i) {
    crc ^= planes.Code<uint8_t>(i);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xEDB88320u : 0);
  }
  EXPECT_EQ(~crc, 0x2EB98E31u);
  const auto latent = [](size_t i) { return i < 512; };
  EXPECT_NEAR(RelativeError(x, planes.Decode(576), latent), 0.02583, 0.00001);
}

// The integers of q8_0 and q4_0, which the unrotated halves of int8 and int4 reproduce.
TEST_P(CodecOn, IntegersAreThoseOfTheKnownBlocks) {
  std::vector<float> x(32);
  for (int k = 0; k < 32; ++k) x[static_cast<size_t>(k)] = static_cast<float>(((37 * k) % 64 - 31.5) / 10);
  const float amax = std::bit_cast<float>(kernels().max_magnitude(x.data(), 32));
  EXPECT_EQ(amax, 3.15f);
  std::vector<int8_t> q(32);
  kernels().to_int8(x.data(), 32, 1.0f / (amax / 127.0f), q.data());
  EXPECT_THAT(q, testing::ElementsAre(-127, 22, -87, 62, -46, 103, -6, -115, 34, -75, 75, -34, 115, 6, -103, 46, -62,
                                      87, -22, 127, 18, -91, 58, -50, 99, -10, -119, 30, -79, 71, -38, 111));
  std::vector<uint8_t> packed(16);
  uint16_t scale = 0;
  kernels().to_int4(x.data(), 1, packed.data(), &scale);
  EXPECT_EQ(scale, 0x364D);
  std::vector<int> nibbles;
  for (const uint8_t byte : packed) nibbles.push_back(byte & 15);
  for (const uint8_t byte : packed) nibbles.push_back(byte >> 4);
  EXPECT_THAT(nibbles, testing::ElementsAre(0, 9, 3, 12, 5, 14, 8, 1, 10, 3, 13, 6, 15, 8, 2, 11, 4, 13, 7, 15, 9, 2,
                                            12, 5, 14, 7, 1, 10, 3, 12, 6, 15));
}

// No encoder writes these, but a wire may bring them: a decoder takes them as the formula says, and touches nothing
// else.
TEST_P(CodecOn, CodesThatNoEncoderWritesDecodeAsTheFormulaSays) {
  const KvRowShape shape = {.channels = 32};
  const auto decoded = [&shape](KvCodec codec, std::byte code, float scale) {
    const KvCodecInfo& info = Info(codec);
    const std::vector<std::byte> codes(info.code_bytes(shape), code);
    std::vector<std::byte> scales(info.scale_bytes(shape));
    for (size_t i = 0; i + sizeof(scale) <= scales.size(); i += sizeof(scale))
      std::memcpy(scales.data() + i, &scale, sizeof(scale));
    std::vector<float> x(static_cast<size_t>(shape.channels) + 1, -1.0f);
    info.decode(shape, codes.data(), scales.data(), 1, x.data(), shape.channels);
    EXPECT_EQ(x.back(), -1.0f) << "beyond the row";
    x.pop_back();
    return x;
  };
  // -128 in every channel is the first row of the matrix times -128 sqrt(32).
  const std::vector<float> x = decoded(KvCodec::kInt8, std::byte{0x80}, 0.5f);
  EXPECT_NEAR(x[0], -64 * std::sqrt(32.0f), 1e-3);
  for (size_t i = 1; i < x.size(); ++i) EXPECT_EQ(x[i], 0) << i;
  // Scales of 0 and below, infinite ones, and NaN as an fp8 code.
  for (const float zero : decoded(KvCodec::kInt8, std::byte{0x05}, 0.0f)) EXPECT_EQ(zero, 0);
  EXPECT_NEAR(decoded(KvCodec::kInt8, std::byte{0x80}, -0.5f)[0], 64 * std::sqrt(32.0f), 1e-3);
  EXPECT_FALSE(std::isfinite(decoded(KvCodec::kInt8, std::byte{0x05}, std::numeric_limits<float>::infinity())[0]));
  for (const float nan : decoded(KvCodec::kFp8, std::byte{0x7F}, 1.0f)) EXPECT_TRUE(std::isnan(nan));
  for (const float nan : decoded(KvCodec::kFp8, std::byte{0xFF}, 1.0f)) EXPECT_TRUE(std::isnan(nan));
}

// Element (i, j) of H is 1 where i & j has an even number of ones, else -1.
TEST_P(CodecOn, RotationIsTheOrthonormalHadamardMatrix) {
  const auto goldens = ReadSafetensors("formats.safetensors");
  for (const int width : {16, 32, 48, 64, 80, 96, 128, 256, 1024}) {
    SCOPED_TRACE(width);
    const int block = HadamardBlock(width);
    const std::vector<float> x = Gaussian(static_cast<size_t>(width), 3);
    std::vector<float> y(x.size());
    RotateRow(x.data(), width, y.data());
    for (int i = 0; i < width; ++i) {
      double sum = 0;
      for (int j = 0; j < block; ++j) {
        const bool negative = std::popcount(static_cast<unsigned>(i % block & j)) % 2 != 0;
        sum += (negative ? -1 : 1) * x[static_cast<size_t>(i / block * block + j)];
      }
      EXPECT_NEAR(y[static_cast<size_t>(i)], sum / std::sqrt(block), 3e-6) << i;
    }
    std::vector<float> back = y;
    RotateRow(back.data(), width, back.data());
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(back[i], x[i], 3e-6);
    const auto golden = goldens.find("hadamard/x" + std::to_string(width));
    if (golden == goldens.end()) continue;
    const auto want = goldens.at("hadamard/y" + std::to_string(width)).as<float>();
    std::vector<float> got = golden->second.as<float>();
    for (size_t row = 0; row < got.size(); row += static_cast<size_t>(width))
      RotateRow(got.data() + row, width, got.data() + row);
    EXPECT_EQ(got, want);
  }
}

TEST_P(CodecOn, RotationKeepsInnerProducts) {
  const std::vector<float> q = Gaussian(128, 5);
  const std::vector<float> k = Gaussian(128, 6);
  std::vector<float> hq(128), hk(128);
  RotateRow(q.data(), 128, hq.data());
  RotateRow(k.data(), 128, hk.data());
  const auto dot = [](const std::vector<float>& a, const std::vector<float>& b) {
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  };
  EXPECT_NEAR(dot(hq, hk), dot(q, k), 1e-6 * std::sqrt(dot(q, q) * dot(k, k)));
}

// The scale of mla-fp8 is the least power of two that is no less than amax / 448 and 1e-4.
TEST_P(CodecOn, MlaScalesArePowersOfTwo) {
  const auto goldens = ReadSafetensors("formats.safetensors");
  const auto amax = goldens.at("pow2_scale/amax").as<float>();
  const auto want = goldens.at("pow2_scale/scale").as<float>();
  const KvRowShape shape = {.channels = 16, .rope = 2};
  for (size_t i = 0; i < amax.size(); ++i) {
    std::vector<float> x(18);
    x[5] = -amax[i];
    Planes planes(KvCodec::kMlaFp8, shape, 1);
    planes.Encode(x.data(), 18);
    EXPECT_EQ(planes.Code<float>(4), want[i]) << amax[i];
  }
}

// A scale with a floor of 1 makes small rows vanish.
TEST_P(CodecOn, SmallRowsKeepTheirPrecision) {
  for (const float deviation : {0.01f, 1e-20f}) {
    const std::vector<float> x = Gaussian(128 * 64, 7, deviation);
    Planes planes(KvCodec::kInt8, {.channels = 128}, 64);
    planes.Encode(x.data(), 128);
    std::vector<float> scaled = planes.Decode(128);
    std::vector<float> plain = x;
    for (std::vector<float>* v : {&scaled, &plain}) {
      for (float& value : *v) value /= deviation;  // or the squares would vanish
    }
    EXPECT_LT(RelativeError(plain, scaled, [](size_t) { return true; }), 0.01) << deviation;
  }
}

// Beside a channel at 30 x the others survive.
TEST_P(CodecOn, OutlierChannelsLeaveTheOthersTheirPrecision) {
  constexpr size_t kWidth = 128;
  std::vector<float> x = Gaussian(kWidth * 256, 8);
  for (size_t i = 17; i < x.size(); i += kWidth) x[i] *= 30;
  const std::vector<std::pair<KvCodec, double>> bounds = {
      {KvCodec::kInt8, 0.015}, {KvCodec::kFp8, 0.03}, {KvCodec::kInt4, 0.2}};
  for (const auto& [codec, bound] : bounds) {
    Planes planes(codec, {.channels = kWidth}, 256);
    planes.Encode(x.data(), kWidth);
    const double error = RelativeError(x, planes.Decode(kWidth), [](size_t i) { return i % kWidth != 17; });
    EXPECT_LT(error, bound) << Name(codec);
    EXPECT_GT(error, bound / 3) << Name(codec);
  }
}

TEST_P(CodecOn, ScalesAreNeverZeroInfiniteOrNegative) {
  for (const CodecCase& c : CodecCases()) {
    if (c.codec != KvCodec::kFp8 && c.codec != KvCodec::kInt8 && c.codec != KvCodec::kInt4) continue;
    Planes planes(c.codec, c.shape, c.rows);
    planes.Encode(c.x.data(), c.shape.width());
    const size_t scales = static_cast<size_t>(c.rows) * Info(c.codec).scale_bytes(c.shape);
    for (size_t i = 0; i < scales / 4 && c.codec != KvCodec::kInt4; ++i) {
      const auto s = planes.Scale<float>(i);
      EXPECT_TRUE(std::isnan(s) || (s > 0 && s < kInfinity)) << Name(c.codec) << " " << c.input << ": " << s;
    }
    for (size_t i = 0; i < scales / 2 && c.codec == KvCodec::kInt4; ++i) {
      const auto s = F16ToF32(planes.Scale<uint16_t>(i));
      EXPECT_TRUE(std::isnan(s) || (s != 0 && std::abs(s) < kInfinity)) << c.input << ": " << s;
    }
  }
}

TEST_P(CodecOn, ARowWithANanIsWhollyPoisonedAndCounted) {
  for (const KvCodecInfo& info : KvCodecs()) {
    SCOPED_TRACE(info.name);
    const KvRowShape shape = ShapeFor(info.codec);
    const auto width = static_cast<size_t>(shape.width());
    const bool scaled = info.codec > KvCodec::kF16;
    for (const float bad : {kNan, kInfinity, -kInfinity}) {
      for (const size_t at : {size_t{0}, width / 2, width - 1}) {
        std::vector<float> x = Gaussian(3 * width, 9);
        x[width + at] = bad;
        Planes planes(info.codec, shape, 3);
        EXPECT_EQ(planes.Encode(x.data(), shape.width()).nonfinite_rows, 1);
        EXPECT_EQ(planes.CountNonfinite(), 1);
        const std::vector<float> y = planes.Decode(shape.width());
        for (size_t i = 0; i < 3 * width; ++i) {
          const bool poisoned = i / width == 1 && (scaled || i % width == at);
          ASSERT_EQ(std::isfinite(y[i]), !poisoned) << "element " << i << " of a row with " << bad << " at " << at;
        }
      }
    }
  }
}

TEST_P(CodecOn, RowsBeyondTheRangeArePoisonedFromOneValueOn) {
  const KvRowShape gqa = {.channels = 16};
  const KvRowShape mla = {.channels = 16, .rope = 2};
  for (const KvCodecInfo& info : KvCodecs()) {
    if (info.codec <= KvCodec::kF16 || info.codec == KvCodec::kInt4) continue;
    const KvRowShape& shape = info.codec == KvCodec::kMlaFp8 ? mla : gqa;
    // A row of one element spreads evenly over the sixteen of its block, by a quarter: exactly, up to here.
    const float limit = info.rotated ? 0x1p102f : 0x1p100f;
    for (const auto& [value, nonfinite] :
         {std::pair{limit, 0}, std::pair{std::nextafter(limit, kInfinity), 1}, std::pair{-2 * limit, 1}}) {
      std::vector<float> x(18);
      x[0] = value;
      Planes planes(info.codec, shape, 1);
      EXPECT_EQ(planes.Encode(x.data(), shape.width()).nonfinite_rows, nonfinite) << info.name << " " << value;
      EXPECT_EQ(std::isnan(planes.Decode(shape.width())[0]), nonfinite == 1) << info.name << " " << value;
    }
  }
}

TEST_P(CodecOn, FiniteValuesBeyondSixteenBitsAreCutAndCounted) {
  const std::vector<float> x = {65504, 65505, -70000, 3.3895314e38f, 3.39e38f, -3.4e38f, kInfinity, 1};
  Planes f16(KvCodec::kF16, {.channels = 8}, 1);
  EXPECT_EQ(f16.Encode(x.data(), 8).saturated, 5);
  EXPECT_THAT(f16.Decode(8), testing::ElementsAre(65504, 65504, -65504, 65504, 65504, -65504, kInfinity, 1));
  Planes bf16(KvCodec::kBf16, {.channels = 8}, 1);
  EXPECT_EQ(bf16.Encode(x.data(), 8).saturated, 2);
  EXPECT_EQ(bf16.Code<uint16_t>(4), 0x7F7F);
  EXPECT_EQ(bf16.Code<uint16_t>(5), 0xFF7F);
  EXPECT_EQ(bf16.Code<uint16_t>(6), 0x7F80);
}

// Groups whose scale is beyond f16: cut to 65504, so their largest values are too, and counted by the group.
TEST_P(CodecOn, Int4GroupsBeyondTheScalesRangeAreCutAndCounted) {
  std::vector<float> y(64, 1.0f);
  y[40] = -1e6f;  // of the rotated row
  std::vector<float> x(64);
  RotateRow(y.data(), 64, x.data());
  Planes planes(KvCodec::kInt4, {.channels = 64}, 1);
  const KvCodecCounts counts = planes.Encode(x.data(), 64);
  EXPECT_EQ(counts.saturated, 1);
  EXPECT_EQ(counts.nonfinite_rows, 0);
  EXPECT_EQ(planes.Scale<uint16_t>(1), 0x7BFF);
}

// Widths that no vector divides, and a negative zero, for codecs without scales.
TEST_P(CodecOn, FloatRowsOfAnyWidthRoundTrip) {
  for (const KvCodec codec : {KvCodec::kF32, KvCodec::kBf16, KvCodec::kF16}) {
    for (const int width : {1, 2, 3, 7, 8, 9, 15, 17, 24, 31, 33, 50}) {
      std::vector<float> x(static_cast<size_t>(3 * width));
      for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(static_cast<int>(i) - 20) / 8;
      x[0] = -0.0f;
      Planes planes(codec, {.channels = width}, 3);
      const KvCodecCounts counts = planes.Encode(x.data(), width);
      EXPECT_EQ(counts.nonfinite_rows + counts.saturated + planes.CountNonfinite(), 0);
      EXPECT_TRUE(planes.GuardsHold()) << Name(codec) << " " << width;
      const std::vector<float> back = planes.Decode(width);
      for (size_t i = 0; i < x.size(); ++i) ASSERT_TRUE(SameFloat(back[i], x[i])) << Name(codec) << " " << width;
    }
  }
}

// Bytes of every instruction set against those of the portable one, over many magnitudes: what no golden has.
TEST_P(CodecOn, BytesAreThoseOfThePortableCode) {
  const std::vector<KvRowShape> shapes = {
      {.channels = 16}, {.channels = 48},  {.channels = 80},   {.channels = 160},
      {.channels = 64}, {.channels = 256}, {.channels = 1024}, {.channels = 512, .rope = 64}};
  for (const KvCodecInfo& info : KvCodecs()) {
    for (const KvRowShape& shape : shapes) {
      if (!info.check(shape).ok()) continue;
      constexpr int64_t kRows = 40;
      std::vector<float> x = Gaussian(static_cast<size_t>(kRows * shape.width()), 11);
      for (size_t i = 0; i < x.size(); ++i)
        x[i] = std::ldexp(x[i], static_cast<int>(i / static_cast<size_t>(shape.width())) * 6 - 120);
      Planes here(info.codec, shape, kRows), portable(info.codec, shape, kRows);
      const KvCodecCounts counts = here.Encode(x.data(), shape.width());
      const std::vector<float> decoded = here.Decode(shape.width());
      ASSERT_TRUE(SetIsa(Isa::kPortable).ok());
      const KvCodecCounts want = portable.Encode(x.data(), shape.width());
      const std::vector<float> portable_decoded = portable.Decode(shape.width());
      ASSERT_TRUE(SetIsa(GetParam()).ok());
      EXPECT_EQ(here.Body(), portable.Body()) << info.name << " " << shape.channels;
      EXPECT_EQ(std::pair(counts.nonfinite_rows, counts.saturated), std::pair(want.nonfinite_rows, want.saturated));
      for (size_t i = 0; i < decoded.size(); ++i) ASSERT_TRUE(SameFloat(decoded[i], portable_decoded[i])) << info.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, CodecOn, ::testing::ValuesIn(SupportedIsas()),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST(Codec, TheListIsInTheEnumsOrderWithOneNumberEach) {
  for (size_t i = 0; i < KvCodecs().size(); ++i) {
    const KvCodecInfo& info = KvCodecs()[i];
    EXPECT_EQ(static_cast<size_t>(info.codec), i);
    EXPECT_EQ(info.wire_code, i + 1);
    EXPECT_EQ(*ParseKvCodec(info.name), info.codec);
    EXPECT_EQ(*KvCodecOfWireCode(info.wire_code), info.codec);
  }
  EXPECT_EQ(KvCodecs().size(), 7u);
  // E5M2 has two bits of mantissa: not kept, under no name that others give it.
  for (const char* name : {"e5m2", "fp8_e5m2", "F8_E5M2"}) {
    EXPECT_THAT(ParseKvCodec(name).status().ToString(),
                testing::HasSubstr(absl::StrCat("'", name, "': there are f32, bf16, f16, fp8, int8, int4, mla-fp8")));
  }
  for (const uint8_t number : {0, 8, 255}) {
    EXPECT_THAT(KvCodecOfWireCode(number).status().ToString(),
                testing::HasSubstr(absl::StrCat("number ", number, " is unknown: there are 1 to 7")));
  }
}

TEST(Codec, RefusesRowsItHasNoBytesFor) {
  struct Case {
    KvCodec codec;
    KvRowShape shape;
    bool taken;
  };
  const std::vector<Case> cases = {{KvCodec::kF32, {.channels = 7}, true},
                                   {KvCodec::kBf16, {.channels = 512, .rope = 64}, true},
                                   {KvCodec::kF16, {.channels = 0}, false},
                                   {KvCodec::kFp8, {.channels = 80}, true},
                                   {KvCodec::kFp8, {.channels = 24}, false},
                                   {KvCodec::kFp8, {.channels = 512, .rope = 64}, false},
                                   {KvCodec::kInt8, {.channels = 80}, true},
                                   {KvCodec::kInt8, {.channels = 72}, false},
                                   {KvCodec::kInt8, {.channels = 2048}, false},
                                   {KvCodec::kInt8, {.channels = 512, .rope = 64}, false},
                                   {KvCodec::kInt4, {.channels = 96}, true},
                                   {KvCodec::kInt4, {.channels = 80}, false},
                                   {KvCodec::kMlaFp8, {.channels = 192, .rope = 32}, true},
                                   {KvCodec::kMlaFp8, {.channels = 128}, false},
                                   {KvCodec::kMlaFp8, {.channels = 100, .rope = 32}, false},
                                   {KvCodec::kMlaFp8, {.channels = 128, .rope = 3}, false}};
  for (const Case& c : cases) {
    const Status status = Info(c.codec).check(c.shape);
    EXPECT_EQ(status.ok(), c.taken) << Name(c.codec) << " " << c.shape.channels << " + " << c.shape.rope;
    if (c.taken) continue;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(std::to_string(c.shape.channels)));
  }
}

// The table of kernels/codec/README.md.
TEST(Codec, RowsHaveTheBytesOfTheTable) {
  const std::vector<std::tuple<KvCodec, size_t, size_t>> cases = {{KvCodec::kF32, 512, 0},  {KvCodec::kBf16, 256, 0},
                                                                  {KvCodec::kF16, 256, 0},  {KvCodec::kFp8, 128, 4},
                                                                  {KvCodec::kInt8, 128, 4}, {KvCodec::kInt4, 64, 8}};
  for (const auto& [codec, code_bytes, scale_bytes] : cases) {
    EXPECT_EQ(Info(codec).code_bytes({.channels = 128}), code_bytes) << Name(codec);
    EXPECT_EQ(Info(codec).scale_bytes({.channels = 128}), scale_bytes) << Name(codec);
  }
  EXPECT_EQ(Info(KvCodec::kMlaFp8).code_bytes({.channels = 192, .rope = 32}), 192u + 2 * 4 + 2 * 32);
}

}  // namespace
}  // namespace sluice
