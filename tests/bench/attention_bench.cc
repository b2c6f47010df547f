// How fast decode attention reads its KV, for each store codec, beside the rate at which the same threads read memory:
// medians of rounds in which all take turns. A batch of sequences, each with one token at the end of its context; the
// caches of all layers together are far larger than the machine's.
//   attention_bench [--isa NAME] [--threads N] [--batch N] [--context N] [--kv-heads N] [--group N] [--head-dim N]
//                   [--codec NAME] [--mib N] [--rounds N] [--weights]
// With --weights each token's softmax weights are given out too, as for a cache policy that ranks by them.
#include <cstdio>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "common/rng.h"
#include "kernels/attention.h"
#include "kernels/isa.h"
#include "tests/bench/interleaved.h"
#include "tests/bench/limit_loops.h"

namespace sluice {

namespace {

struct Options {
  std::string isa;
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  int batch = 8;
  int64_t context = 8192;
  int kv_heads = 8;
  int group = 1;
  int head_dim = 64;
  std::string codec;
  size_t mib = 512;
  int rounds = 7;
  bool weights = false;
};

constexpr int kPageTokens = 16;

Buffer Take(size_t bytes) {
  StatusOr<Buffer> buffer = Buffer::Create(bytes, /*touch=*/true);
  SLUICE_CHECK(buffer.ok(), "", buffer.status().ToString());
  return *std::move(buffer);
}

// The caches of some layers of the batch, laid out as a pool lays them out.
class Decode {
 public:
  Decode(const Options& o, const KvCodecInfo& codec, ThreadPool* pool)
      : options_(o),
        shape_({.heads = o.kv_heads * o.group,
                .kv_heads = o.kv_heads,
                .key_dim = o.head_dim,
                .value_dim = o.head_dim,
                .scale = 0.125f}),
        codec_(codec),
        pool_(pool),
        attention_(*Attention::Create(shape_, o.batch, o.context, o.threads)),
        page_rows_(static_cast<size_t>(kPageTokens * o.kv_heads)),
        row_bytes_(codec.code_bytes(row()) + codec.scale_bytes(row())),
        pages_((o.context + kPageTokens - 1) / kPageTokens),
        layer_bytes_(static_cast<size_t>(o.batch * pages_) * 2 * page_rows_ * row_bytes_),
        layers_(std::max<size_t>(1, (o.mib << 20) / layer_bytes_)),
        memory_(Take(layers_ * layer_bytes_)),
        q_(static_cast<size_t>(o.batch * shape_.heads * o.head_dim)),
        out_(q_.size()),
        page_of_(static_cast<size_t>(o.batch * pages_)) {
    Rng rng(1);
    for (float& x : q_) x = static_cast<float>(rng.Uniform() - 0.5);
    std::vector<float> x(page_rows_ * static_cast<size_t>(o.head_dim));
    for (float& e : x) e = static_cast<float>(rng.Uniform() + rng.Uniform() - 1);
    const size_t plane = page_rows_ * row_bytes_;
    for (size_t at = 0; at < memory_.size(); at += plane) {
      if (at == 0) {
        (void)codec.encode(row(), x.data(), static_cast<int64_t>(page_rows_), o.head_dim, memory_.data(),
                           memory_.data() + page_rows_ * codec.code_bytes(row()));
      } else {
        std::memcpy(memory_.data() + at, memory_.data(), plane);
      }
    }
    std::iota(page_of_.begin(), page_of_.end(), 0);
    for (int i = 0; i < o.batch; ++i)
      sequences_.push_back({i, 1, o.context - 1, page_of_.data() + static_cast<ptrdiff_t>(i) * pages_});
    if (!o.weights) return;
    const int64_t stride = Attention::WeightsStride(o.context);
    weights_.resize(static_cast<size_t>(o.batch * shape_.heads * stride));
    for (AttentionSequence& s : sequences_) {
      s.weights = weights_.data() + s.token * shape_.heads * stride;
      s.weights_stride = stride;
    }
  }

  double bytes() const { return static_cast<double>(layers_ * layer_bytes_); }
  double layers() const { return static_cast<double>(layers_); }

  void Run() {
    const size_t plane = page_rows_ * row_bytes_;
    const int64_t stride = int64_t{shape_.heads} * options_.head_dim;
    for (size_t layer = 0; layer < layers_; ++layer) {
      const auto rows = [&](size_t offset) {
        const std::byte* base = memory_.data() + layer * layer_bytes_ + offset;
        return KvRows{.codes = base,
                      .scales = base + page_rows_ * codec_.code_bytes(row()),
                      .code_bytes = codec_.code_bytes(row()),
                      .scale_bytes = codec_.scale_bytes(row())};
      };
      const PagedKv kv = {.k = rows(0),
                          .v = rows(plane),
                          .page_stride_bytes = 2 * plane,
                          .page_tokens = kPageTokens,
                          .codec = codec_.codec};
      attention_.Run(kv, sequences_, q_.data(), stride, out_.data(), stride, *pool_);
    }
  }

 private:
  KvRowShape row() const { return {.channels = shape_.key_dim}; }

  const Options options_;
  const AttentionShape shape_;
  const KvCodecInfo& codec_;
  ThreadPool* pool_;
  Attention attention_;
  const size_t page_rows_;
  const size_t row_bytes_;
  const int64_t pages_;  // of a sequence
  const size_t layer_bytes_;
  const size_t layers_;
  Buffer memory_;
  std::vector<float> q_;
  std::vector<float> out_;
  std::vector<float> weights_;
  std::vector<int32_t> page_of_;
  std::vector<AttentionSequence> sequences_;
};

void Main(const Options& o) {
  ThreadPool pool(o.threads);
  Buffer memory = Take(o.mib << 20);
  const size_t share = memory.size() / static_cast<size_t>(o.threads) / 4096 * 4096;
  std::vector<TimedLoop> loops = {{"stream read", static_cast<double>(share) * o.threads, [&] {
                                     pool.ParallelFor(o.threads, [&](int64_t i, int) {
                                       ReadStream(memory.data() + static_cast<size_t>(i) * share, share);
                                     });
                                   }}};
  std::vector<std::unique_ptr<Decode>> decodes;
  for (const KvCodecInfo& codec : KvCodecs()) {
    if (codec.codec == KvCodec::kMlaFp8 || !codec.check({.channels = o.head_dim}).ok()) continue;
    if (!o.codec.empty() && codec.name != o.codec) continue;
    decodes.push_back(std::make_unique<Decode>(o, codec, &pool));
    loops.push_back({std::string(codec.name), decodes.back()->bytes(), [d = decodes.back().get()] { d->Run(); }});
  }
  const std::vector<double> rates = MedianRates(loops, o.rounds, o.threads);
  std::printf("%s, %d threads, batch %d, context %ld, %d kv heads of %d, group %d\n",
              std::string(Name(ActiveIsa())).c_str(), o.threads, o.batch, static_cast<long>(o.context), o.kv_heads,
              o.head_dim, o.group);
  for (size_t i = 0; i < loops.size(); ++i) {
    std::printf("%-12s %6.2f GB/s  %5.2f of stream read", loops[i].name.c_str(), rates[i] / 1e9, rates[i] / rates[0]);
    if (i > 0) std::printf("  %8.1f us a layer", decodes[i - 1]->bytes() / rates[i] / decodes[i - 1]->layers() * 1e6);
    std::printf("\n");
  }
}

}  // namespace

}  // namespace sluice

int main(int argc, char** argv) {
  CLI::App app("How fast decode attention reads its KV");
  sluice::Options o;
  app.add_option("--isa", o.isa, "portable, avx2 or avx512; default: the best");
  app.add_option("--threads", o.threads)->check(CLI::Range(1, 256));
  app.add_option("--batch", o.batch)->check(CLI::Range(1, 1024));
  app.add_option("--context", o.context)->check(CLI::Range(1, 1 << 20));
  app.add_option("--kv-heads", o.kv_heads)->check(CLI::Range(1, 256));
  app.add_option("--group", o.group)->check(CLI::Range(1, 128));
  app.add_option("--head-dim", o.head_dim)->check(CLI::Range(2, 1024));
  app.add_option("--codec", o.codec, "default: all");
  app.add_option("--mib", o.mib, "of KV for each codec, and of the stream")->check(CLI::Range(1, 1 << 16));
  app.add_option("--rounds", o.rounds)->check(CLI::Range(1, 1000000));
  app.add_flag("--weights", o.weights);
  CLI11_PARSE(app, argc, argv);
  for (const sluice::Isa known : sluice::SupportedIsas()) {
    if (sluice::Name(known) == o.isa) SLUICE_CHECK(sluice::SetIsa(known).ok());
  }
  sluice::Main(o);
  return 0;
}
