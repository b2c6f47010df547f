// A model run whole in this process, without a service: transformer, KV pool and generation, one request at a time.
// Keeps the KV of the last request, so that the next turn of a chat computes only what is new.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/completer.h"
#include "common/cache_policy.h"
#include "model/checkpoint/checkpoint.h"
#include "model/kept_slots.h"
#include "model/kv_pool.h"
#include "model/text/chat_template.h"
#include "model/text/tokenizer.h"
#include "model/transformer.h"

namespace sluice {

struct LocalModelOptions {
  std::string path;
  int threads = 1;
  bool exact = false;
  std::string kv_store = "auto";  // a codec's name, or what ChooseStoreCodec takes
  int batch_tokens_max = 512;     // of one step while the prompt is computed
  CachePolicySpec policy;
  bool streamed = false;  // the prompt goes through the bounded cache, as what comes after it does
};

class LocalModel final : public Completer {
 public:
  static StatusOr<std::unique_ptr<LocalModel>> Open(const LocalModelOptions& options);

  StatusOr<CompletionAnswer> Complete(const CompletionRequest& request,
                                      const std::function<void(std::string_view)>& on_text) override;

 private:
  LocalModel() = default;

  StatusOr<std::vector<TokenId>> PromptIds(const CompletionRequest& request);
  StatusOr<std::vector<TokenId>> ChatIds(const nlohmann::ordered_json& messages);
  Status MakeRoom(int64_t tokens);
  StatusOr<absl::Span<const float>> Prefill(const std::vector<TokenId>& ids, int64_t more_tokens);
  StatusOr<absl::Span<const float>> PrefillDensely(const std::vector<TokenId>& ids, PromptScores* scores);
  StatusOr<absl::Span<const float>> PrefillUnder(const CachePolicy& policy, const std::vector<TokenId>& ids,
                                                 int64_t more_tokens);
  StatusOr<absl::Span<const float>> Forward(absl::Span<const TokenId> tokens, LogitsFor logits, bool generated,
                                            PromptScores* scores = nullptr);

  LocalModelOptions options_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Tokenizer> tokenizer_;         // null where the model has none
  std::unique_ptr<ChatTemplate> chat_template_;  // parsed for the first chat
  std::unique_ptr<Transformer> transformer_;
  std::unique_ptr<KvPool> kv_;
  PageLease pages_;
  std::vector<TokenId> cached_ids_;  // whose KV is in pages_, or was until it was pruned
  std::unique_ptr<KeptSlots> kept_;  // of cached_ids_, under a policy
  int64_t positions_max_ = 0;        // of prompt and answer together
  double load_ms_ = 0;
};

}  // namespace sluice
