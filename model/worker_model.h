// What prefill and decode both open before they take memory: the checkpoint, its tokenizer and the shape of the pool.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/status.h"
#include "model/checkpoint/checkpoint.h"
#include "model/kv_pool.h"
#include "model/text/tokenizer.h"

namespace sluice {

struct WorkerModel {
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<Tokenizer> tokenizer;  // null where the checkpoint's kind is not supported: ids only, no text
  KvPoolOptions kv;
};

// `kv_store` is a codec's name or "auto", `kv_memory_bytes` what the pool's whole pages must fit in. Errors name the file, the
// field or both sizes.
StatusOr<WorkerModel> OpenWorkerModel(const std::string& path, const std::string& kv_store, int page_tokens,
                                      int64_t kv_memory_bytes);

}  // namespace sluice
