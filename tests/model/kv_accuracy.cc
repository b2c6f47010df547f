#include "tests/model/kv_accuracy.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include "nlohmann/json.hpp"
#include "tests/model/engine_fixture.h"

namespace sluice {
namespace {

// log p of every token, from logits.
void LogSoftmax(absl::Span<const float> logits, std::vector<double>& log_p) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - max);
  const double log_sum = max + std::log(sum);
  log_p.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) log_p[i] = logits[i] - log_sum;
}

// A codec's pool, and where its window stands.
struct Cache {
  std::unique_ptr<KvPool> pool;
  PageLease lease;
};

class Measurement {
 public:
  Measurement(Transformer& transformer, int64_t context) : transformer_(transformer) {
    const KvLayout layout = KvLayout::Of(transformer.config());
    for (const KvCodecInfo& info : KvCodecs()) {
      if (!CheckCodec(layout, info.codec).ok()) continue;
      KvPoolOptions options = {.layout = layout, .codec = info.codec};
      options.pages = static_cast<int>((context + options.page_tokens - 1) / options.page_tokens);
      Cache& cache = caches_.emplace_back();
      cache.pool = Must(KvPool::Create(options));
      cache.lease = Must(cache.pool->Lease(options.pages));
      results_.push_back({.codec = info.codec});
    }
    SLUICE_CHECK(results_[0].codec == KvCodec::kF32, "the first codec is what the others are compared with");
  }

  // Tokens [at, at + size of part) of a window whose tokens are `window`.
  void Block(absl::Span<const TokenId> window, int64_t at, absl::Span<const TokenId> part) {
    for (size_t c = 0; c < caches_.size(); ++c) {
      const SequenceChunk chunk = {part, at, caches_[c].lease.pages(), LogitsFor::kAll};
      const absl::Span<const float> logits = Must(transformer_.Forward({{chunk}}, *caches_[c].pool));
      if (c == 0) base_.assign(logits.begin(), logits.end());
      Compare(window, static_cast<size_t>(at), part.size(), logits, results_[c]);
    }
  }

  std::vector<CodecAccuracy> results() { return std::move(results_); }

 private:
  void Compare(absl::Span<const TokenId> window, size_t at, size_t rows, absl::Span<const float> logits,
               CodecAccuracy& result) {
    const auto vocab = static_cast<size_t>(transformer_.config().vocab_size);
    for (size_t i = 0; i < rows && at + i + 1 < window.size(); ++i) {
      const auto row = logits.subspan(i * vocab, vocab);
      const auto base_row = absl::MakeConstSpan(base_).subspan(i * vocab, vocab);
      LogSoftmax(row, log_q_);
      LogSoftmax(base_row, log_p_);
      for (size_t k = 0; k < vocab; ++k) result.kld += std::exp(log_p_[k]) * (log_p_[k] - log_q_[k]);
      const double nll = -log_q_[static_cast<size_t>(window[at + i + 1])];
      result.nll += nll;
      result.nlls.push_back(static_cast<float>(nll));
      result.same_top += Argmax(row) == Argmax(base_row);
      ++result.tokens;
    }
  }

  Transformer& transformer_;
  std::vector<Cache> caches_;
  std::vector<CodecAccuracy> results_;
  std::vector<float> base_;  // logits of a block in f32
  std::vector<double> log_p_, log_q_;
};

}  // namespace

std::vector<CodecAccuracy> MeasureKvAccuracy(Transformer& transformer, absl::Span<const TokenId> ids, int64_t context,
                                             int64_t block) {
  Measurement measurement(transformer, context);
  for (size_t begin = 0; begin < ids.size(); begin += static_cast<size_t>(context)) {
    const absl::Span<const TokenId> window = ids.subspan(begin, static_cast<size_t>(context));
    for (int64_t at = 0; at < static_cast<int64_t>(window.size()); at += block) {
      measurement.Block(window, at, window.subspan(static_cast<size_t>(at), static_cast<size_t>(block)));
    }
  }
  return measurement.results();
}

std::vector<ExpectedAccuracy> ReadExpectedAccuracy(const std::string& path) {
  std::ifstream file(path);
  SLUICE_CHECK(file.good(), "", path);
  std::vector<ExpectedAccuracy> expected;
  const nlohmann::json json = nlohmann::json::parse(file);
  for (const nlohmann::json& row : json.at("rows")) {
    ExpectedAccuracy& e = expected.emplace_back();
    row.at("codec").get_to(e.codec);
    row.at("nll").get_to(e.nll);
    if (row.contains("delta_nll")) {
      row.at("delta_nll").get_to(e.delta_nll);
      row.at("mean_kld").get_to(e.mean_kld);
      row.at("top1_agreement").get_to(e.top1_agreement);
    }
  }
  return expected;
}

}  // namespace sluice
