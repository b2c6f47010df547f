// The engine's speed in the cases of the peer table (peer_table.sh), one JSON line each: prompts and token counts as
// llama-bench and llama-batched-bench take them, tokens at random, nothing sampled.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "kernels/isa.h"
#include "model/checkpoint/checkpoint.h"
#include "model/transformer.h"

namespace sluice {
namespace {

constexpr int kBatchTokens = 512;
constexpr int kStreams = 32;
constexpr int kPageTokens = 16;

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

class Engine {
 public:
  static StatusOr<Engine> Create(const std::string& path, int threads, KvCodec store) {
    Engine engine;
    SLUICE_RETURN_IF_ERROR(SetIsaFromEnvironment());
    SLUICE_ASSIGN_OR_RETURN(engine.checkpoint_, OpenCheckpoint(path));
    SLUICE_ASSIGN_OR_RETURN(
        engine.transformer_,
        Transformer::Create(engine.checkpoint_.get(),
                            {.threads = threads, .batch_tokens_max = kBatchTokens, .logit_rows_max = kStreams}));
    const KvPoolOptions kv = {.layout = KvLayout::Of(engine.transformer_->config()),
                              .codec = store,
                              .page_tokens = kPageTokens,
                              .pages = kStreams * 512 / kPageTokens};
    SLUICE_ASSIGN_OR_RETURN(engine.kv_, KvPool::Create(kv));
    return engine;
  }

  // Seconds that a prompt of `tokens` takes in batches of at most kBatchTokens.
  double Prefill(int64_t tokens) {
    std::vector<Sequence> one = Sequences(1, tokens);
    const double start = Seconds();
    Append(one, tokens);
    return Seconds() - start;
  }

  // Seconds that `steps` steps of `streams` sequences take, each of `depth` tokens at first.
  double Decode(int streams, int64_t depth, int64_t steps) {
    std::vector<Sequence> sequences = Sequences(streams, depth + steps + 1);
    Append(sequences, std::max<int64_t>(depth, 1));
    const double start = Seconds();
    for (int64_t i = 0; i < steps; ++i) Append(sequences, 1);
    return Seconds() - start;
  }

 private:
  struct Sequence {
    PageLease pages;
    int64_t tokens = 0;
  };

  std::vector<Sequence> Sequences(int count, int64_t tokens_max) {
    std::vector<Sequence> sequences(static_cast<size_t>(count));
    for (Sequence& s : sequences) {
      StatusOr<PageLease> lease = kv_->Lease(kv_->PagesFor(tokens_max));
      SLUICE_CHECK(lease.ok(), "lease ", lease.status().ToString());
      s.pages = *std::move(lease);
    }
    return sequences;
  }

  // Adds `tokens` tokens to every sequence: together where they fit one batch, else one after the other in chunks.
  void Append(std::vector<Sequence>& sequences, int64_t tokens) {
    const int64_t chunk_max = std::max<int64_t>(1, kBatchTokens / static_cast<int64_t>(sequences.size()));
    for (int64_t done = 0; done < tokens; done += chunk_max) {
      const int64_t chunk = std::min(chunk_max, tokens - done);
      std::vector<std::vector<TokenId>> ids;
      Batch batch;
      for (Sequence& s : sequences) {
        std::vector<TokenId>& own = ids.emplace_back();
        for (int64_t i = 0; i < chunk; ++i) own.push_back(NextToken());
        batch.sequences.push_back({.start_position = s.tokens,
                                   .pages = s.pages.pages(),
                                   .logits = done + chunk == tokens ? LogitsFor::kLast : LogitsFor::kNone});
        s.tokens += chunk;
      }
      for (size_t i = 0; i < ids.size(); ++i) batch.sequences[i].tokens = ids[i];
      const auto logits = transformer_->Forward(batch, *kv_);
      SLUICE_CHECK(logits.ok(), "forward ", logits.status().ToString());
    }
  }

  TokenId NextToken() {
    random_ = random_ * 1664525u + 1013904223u;
    return static_cast<TokenId>((random_ >> 8) % static_cast<uint32_t>(transformer_->config().vocab_size));
  }

  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Transformer> transformer_;
  std::unique_ptr<KvPool> kv_;
  uint32_t random_ = 1;
};

struct Case {
  const char* name;
  int64_t tokens;  // counted
  std::function<double(Engine&)> seconds;
};

std::vector<Case> Cases() {
  return {
      {"prefill-512", 512, [](Engine& e) { return e.Prefill(512); }},
      {"prefill-2048", 2048, [](Engine& e) { return e.Prefill(2048); }},
      {"decode-1", 128, [](Engine& e) { return e.Decode(1, 0, 128); }},
      {"decode-32", kStreams * 128, [](Engine& e) { return e.Decode(kStreams, 128, 128); }},
      {"decode-1-depth-4096", 32, [](Engine& e) { return e.Decode(1, 4096, 32); }},
  };
}

Status Run(const std::string& model, const std::string& name, int threads, int repeat, std::string_view store) {
  SLUICE_ASSIGN_OR_RETURN(const KvCodec codec, ParseKvCodec(store));
  SLUICE_ASSIGN_OR_RETURN(Engine engine, Engine::Create(model, threads, codec));
  engine.Prefill(64);
  for (const Case& c : Cases()) {
    if (name != "all" && name != c.name) continue;
    for (int i = 0; i < repeat; ++i) {
      const double seconds = c.seconds(engine);
      std::printf("{\"case\": \"%s\", \"tokens\": %lld, \"seconds\": %.6f, \"tokens_per_s\": %.2f}\n", c.name,
                  static_cast<long long>(c.tokens), seconds, static_cast<double>(c.tokens) / seconds);
      std::fflush(stdout);
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  CLI::App app("Speed of the engine, as JSON lines");
  std::string model, name = "all", store = "bf16";
  int threads = 2, repeat = 1;
  app.add_option("--model", model, "GGUF file or Hugging Face folder")->required();
  app.add_option("--case", name, "one case, or all");
  app.add_option("--store", store, "KV codec of the cache");
  app.add_option("--threads", threads, "compute threads");
  app.add_option("--repeat", repeat, "runs of each case");
  CLI11_PARSE(app, argc, argv);
  const sluice::Status status = sluice::Run(model, name, threads, repeat, store);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
