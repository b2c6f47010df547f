#include "model/worker_model.h"

#include "model/memory_plan.h"
#include "spdlog/spdlog.h"

namespace sluice {

StatusOr<WorkerModel> OpenWorkerModel(const std::string& path, const std::string& kv_store, int page_tokens,
                                      int64_t kv_memory_bytes) {
  WorkerModel model;
  SLUICE_ASSIGN_OR_RETURN(model.checkpoint, OpenCheckpoint(path));
  StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Create(model.checkpoint->tokenizer());
  if (tokenizer.ok()) {
    model.tokenizer = *std::move(tokenizer);
  } else if (absl::IsFailedPrecondition(tokenizer.status())) {
    spdlog::info("no text, ids only: {}", std::string(tokenizer.status().message()));
  } else {
    return tokenizer.status();
  }
  model.kv.layout = KvLayout::Of(model.checkpoint->config());
  SLUICE_ASSIGN_OR_RETURN(model.kv.codec, ChooseStoreCodec(kv_store, model.kv.layout));
  model.kv.page_tokens = page_tokens;
  SLUICE_ASSIGN_OR_RETURN(model.kv.pages, KvPagesWithin(static_cast<size_t>(kv_memory_bytes), model.kv.layout,
                                                        model.kv.codec, page_tokens));
  return model;
}

}  // namespace sluice
