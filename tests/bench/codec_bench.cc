// Speed of the KV codecs and of CRC32C on one thread, beside the rate at which the same thread reads memory. Rates are
// of f32 bytes, in memory far larger than the caches: encoding reads them, decoding writes them.
//   codec_bench [--isa NAME] [--rounds N] [--mib N]
#include <cstdio>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "common/buffer.h"
#include "common/crc32c.h"
#include "common/rng.h"
#include "kernels/codec/codec.h"
#include "kernels/isa.h"
#include "tests/bench/interleaved.h"
#include "tests/bench/limit_loops.h"

namespace sluice {

namespace {

Buffer Take(size_t bytes) {
  StatusOr<Buffer> buffer = Buffer::Create(bytes, /*touch=*/true);
  SLUICE_CHECK(buffer.ok(), "", buffer.status().ToString());
  return *std::move(buffer);
}

void Main(int rounds, size_t mib) {
  const size_t f32_bytes = mib << 20;
  Buffer x = Take(f32_bytes);
  Buffer body = Take(f32_bytes + 64);
  Rng rng(1);
  for (size_t i = 0; i < f32_bytes / sizeof(float); ++i)
    x.as<float>()[i] = static_cast<float>(rng.Uniform() + rng.Uniform() - rng.Uniform() - rng.Uniform());

  std::vector<TimedLoop> loops = {
      {"stream read", static_cast<double>(f32_bytes), [&] { ReadStream(x.data(), f32_bytes); }},
      {"crc32c", static_cast<double>(f32_bytes), [&] { (void)Crc32c(x.data(), f32_bytes); }}};
  for (const KvCodecInfo& info : KvCodecs()) {
    for (const KvRowShape& shape : {KvRowShape{.channels = 64}, {.channels = 128}, {.channels = 512, .rope = 64}}) {
      const bool latent = shape.rope != 0;
      if (!info.check(shape).ok() || (latent && info.codec != KvCodec::kMlaFp8)) continue;
      const auto rows = static_cast<int64_t>(f32_bytes / sizeof(float)) / shape.width();
      const double bytes = static_cast<double>(rows * shape.width()) * sizeof(float);
      std::byte* scales = body.data() + static_cast<size_t>(rows) * info.code_bytes(shape);
      const std::string name = std::string(info.name) + " " + std::to_string(shape.width());
      loops.push_back({name + " encode", bytes, [=, &info, &x, &body] {
                         (void)info.encode(shape, x.as<float>(), rows, shape.width(), body.data(), scales);
                       }});
      loops.push_back({name + " decode", bytes, [=, &info, &x, &body] {
                         info.decode(shape, body.data(), scales, rows, x.as<float>(), shape.width());
                       }});
    }
  }
  const std::vector<double> rates = MedianRates(loops, rounds, 1);
  std::printf("%s, one thread, %zu MiB of f32\n", std::string(Name(ActiveIsa())).c_str(), mib);
  for (size_t i = 0; i < loops.size(); ++i)
    std::printf("%-20s %6.2f GB/s  %5.2f of stream read\n", loops[i].name.c_str(), rates[i] / 1e9, rates[i] / rates[0]);
}

}  // namespace

}  // namespace sluice

int main(int argc, char** argv) {
  CLI::App app("Speed of the KV codecs");
  std::string isa;
  int rounds = 9;
  size_t mib = 64;
  app.add_option("--isa", isa, "portable, avx2 or avx512; default: the best");
  app.add_option("--rounds", rounds)->check(CLI::Range(1, 1000));
  app.add_option("--mib", mib)->check(CLI::Range(1, 4096));
  CLI11_PARSE(app, argc, argv);
  for (const sluice::Isa known : sluice::SupportedIsas()) {
    if (sluice::Name(known) == isa) SLUICE_CHECK(sluice::SetIsa(known).ok());
  }
  sluice::Main(rounds, mib);
  return 0;
}
