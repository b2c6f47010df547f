// Brings what a worker's store codec has cut or could not say, which its transformer counts, into the worker's metrics,
// and tells the log once: such a store is the wrong one for the model.
#pragma once

#include <string>

#include "common/metrics.h"
#include "kernels/codec/codec.h"
#include "spdlog/spdlog.h"

namespace sluice {

class StoreCounts {
 public:
  // The counters outlive it.
  StoreCounts(KvCodec store, prometheus::Counter* saturated_values, prometheus::Counter* nonfinite_rows)
      : store_(store), saturated_values_(saturated_values), nonfinite_rows_(nonfinite_rows) {}

  // After each step, with what was counted since the start. On one thread.
  void Update(const KvCodecCounts& counted) {
    if (counted.saturated > 0 && published_.saturated == 0)
      spdlog::warn("the store codec {} cuts KV values of this model; answers suffer, another --kv-store holds them",
                   std::string(Name(store_)));
    saturated_values_->Increment(static_cast<double>(counted.saturated - published_.saturated));
    nonfinite_rows_->Increment(static_cast<double>(counted.nonfinite_rows - published_.nonfinite_rows));
    published_ = counted;
  }

 private:
  const KvCodec store_;
  prometheus::Counter* const saturated_values_;
  prometheus::Counter* const nonfinite_rows_;
  KvCodecCounts published_;
};

}  // namespace sluice
