// Perplexity of texts that go through a cache token by token from the start, as in an endless conversation.
#pragma once

#include <vector>

#include "eval/cache_case.h"
#include "eval/text_runner.h"

namespace sluice {

struct StreamedOptions {
  int64_t block = 256;    // predictions that are averaged together
  int64_t budget_of = 0;  // what a budget given as a share is a share of
};

struct StreamedRow {
  CacheCase cache;
  CachePolicy policy;
  int64_t tokens = 0;          // predicted
  double nll = 0;              // the mean, in nats
  std::vector<double> blocks;  // means of each block of predictions, over all texts
};

// A row for each cache that can be streamed (snapkv cannot: it chooses when the whole prompt is there). Without a
// window that moves, texts are cut at the model's context.
StatusOr<std::vector<StreamedRow>> MeasureStreamed(TextRunner& runner,
                                                   absl::Span<const absl::Span<const TokenId>> texts,
                                                   absl::Span<const CacheCase> caches, const StreamedOptions& options);

}  // namespace sluice
