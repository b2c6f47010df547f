// Products of SmolLM2-135M's shapes: tokens a second of work as multiply-adds and bytes of weights, and the share of
// the machine's limit measured in the same run (limits.h). One token is held against the stream read, more against the
// 8-bit or f32 loop, whichever the type uses.
//
//   matmul_bench [--benchmark_filter=Q4_1/1536x576]; threads are those of the machine, or SLUICE_BENCH_THREADS
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "benchmark/benchmark.h"
#include "kernels/isa.h"
#include "kernels/matmul.h"
#include "tests/bench/limits.h"
#include "tests/kernels/random_weights.h"

namespace sluice {
namespace {

struct Shape {
  int64_t rows;
  int64_t cols;
};

int Threads() {
  const char* value = std::getenv("SLUICE_BENCH_THREADS");
  return value != nullptr ? std::max(1, std::atoi(value)) : static_cast<int>(std::thread::hardware_concurrency());
}

// More than the caches hold, as a model's layers are: a product of one token reads its weights from memory.
constexpr size_t kWeightBytes = size_t{96} << 20;

void BM_Matmul(benchmark::State& state, DType type, Shape shape, int64_t tokens) {
  const int threads = Threads();
  const MachineLimits& limits = LimitsOf(threads);
  ThreadPool pool(threads);
  const RandomWeights w = RandomWeights::Make(type, shape.rows, shape.cols, 1);
  const size_t bytes = PackedMatrix::PackedBytes(type, shape.rows, shape.cols, {});
  std::vector<PackedMatrix> layers;
  for (size_t i = 0; i < std::max<size_t>(1, std::min<size_t>(200, kWeightBytes / bytes)); ++i) {
    layers.push_back(*PackedMatrix::Pack(w.view, {}, pool));
  }
  const std::vector<float> x = RandomFloats(tokens * shape.cols, 2);
  std::vector<float> y(static_cast<size_t>(tokens * shape.rows));
  Activations activations = *Activations::Create(tokens, shape.cols);
  activations.Set(x.data(), tokens, shape.cols, shape.cols, !layers[0].rounds_activations(), pool);
  size_t next = 0;
  for (auto _ : state) {
    Matmul(layers[next], activations, y.data(), shape.rows, false, pool);
    next = next + 1 < layers.size() ? next + 1 : 0;
    benchmark::ClobberMemory();
  }
  using benchmark::Counter;
  const double macs = static_cast<double>(shape.rows * shape.cols * tokens);
  const double limit = tokens == 1                      ? static_cast<double>(bytes) / limits.stream_bytes_per_s
                       : layers[0].rounds_activations() ? macs / limits.int8_macs_per_s
                                                        : macs / limits.f32_macs_per_s;
  const auto rate = Counter::kIsIterationInvariantRate;
  state.counters["GMAC/s"] = Counter(macs * 1e-9, rate);
  state.counters["GB/s"] = Counter(static_cast<double>(bytes) * 1e-9, rate);
  state.counters["share"] = Counter(limit, rate);
}

void Register() {
  const Shape shapes[] = {{960, 576}, {576, 576}, {1536, 576}, {576, 1536}};
  const auto add = [](DType type, Shape shape, int64_t tokens) {
    const std::string name = std::string(Traits(type).name) + "/" + std::to_string(shape.rows) + "x" +
                             std::to_string(shape.cols) + "/" + std::to_string(tokens);
    benchmark::RegisterBenchmark(name.c_str(), BM_Matmul, type, shape, tokens)->UseRealTime()->MinTime(0.2);
  };
  for (const int64_t tokens : {1, 4, 8, 32, 128, 512}) {
    for (const Shape shape : shapes) add(DType::kQ4_1, shape, tokens);
    if (tokens <= 32) add(DType::kQ8_0, {49152, 576}, tokens);
    for (const DType type : {DType::kF32, DType::kF16, DType::kBf16, DType::kQ4_0}) add(type, {576, 1536}, tokens);
    for (const DType type : {DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) add(type, {576, 1536}, tokens);
  }
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  const sluice::Status status = sluice::SetIsaFromEnvironment();
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  const sluice::MachineLimits& limits = sluice::LimitsOf(sluice::Threads());
  std::printf("%d threads, %s; limits: stream read %.1f GB/s, f32 %.1f GMAC/s, 8-bit %.1f GMAC/s\n", sluice::Threads(),
              sluice::Name(sluice::ActiveIsa()).data(), limits.stream_bytes_per_s * 1e-9, limits.f32_macs_per_s * 1e-9,
              limits.int8_macs_per_s * 1e-9);
  sluice::Register();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
