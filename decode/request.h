// One reservation's request while decode has it: what its handoff must fit, then its choices from the handoff to the
// last token, and the stream that they go to. Knows no pages and no batch. Owned by the engine thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "common/proto/handoff.pb.h"
#include "common/sampling_params.h"
#include "common/status.h"
#include "decode/token_stream.h"
#include "model/generation.h"
#include "model/handoff.h"
#include "model/kept_slots.h"
#include "model/text/tokenizer.h"

namespace sluice::decode {

// What all requests of a process share.
struct ModelFacts {
  const Tokenizer* tokenizer = nullptr;  // null for models without one
  std::vector<TokenId> eos_ids;
  int vocab_size = 0;
  int64_t context_tokens_max = 0;
  KvLayout layout;
};

class Request {
 public:
  // `stream` is shared with the call that reads it.
  // `prompt` may be empty: then it is what the handoff says. Decode has the KV of its first `cached_tokens` tokens, and
  // keeps of it what `policy` says.
  Request(const ModelFacts* model, RequestId id, int64_t prompt_tokens, const SamplingParams& sampling,
          std::shared_ptr<TokenStream> stream, std::vector<TokenId> prompt = {}, int64_t cached_tokens = 0,
          const CachePolicy& policy = {});

  RequestId id() const { return id_; }
  const HandoffExpectation& expected() const { return expected_; }
  const std::shared_ptr<TokenStream>& stream() const { return stream_; }

  // A new prefill begins.
  void RestartTransfer() { first_arrival_ = absl::InfiniteFuture(); }
  // Something of its transfer has come.
  void OnProgress(absl::Time now) { first_arrival_ = std::min(first_arrival_, now); }

  // Goes on where prefill stopped: every choice resumes and its first token is sent. DataLoss, with nothing sent, where
  // a choice cannot resume or the prompt is another one. REQUIRES: `record` is valid for expected(); not called with
  // success before.
  Status Begin(absl::Time now, proto::HandoffRecord record);

  // --- afterwards ---

  int choices() const { return static_cast<int>(choices_.size()); }
  bool Finished(int choice) const { return choices_[static_cast<size_t>(choice)].finished(); }
  bool AllFinished() const;
  // The token to run next and its position. REQUIRES: !Finished(choice).
  const TokenId& LastToken(int choice) const;
  int64_t LastPosition(int choice) const;
  // Its slots; null where the policy is full.
  KeptSlots* kept(int choice) { return kept_.empty() ? nullptr : &kept_[static_cast<size_t>(choice)]; }
  // The tokens whose KV was computed: the prompt and all that was generated but the last.
  std::vector<TokenId> TokensWithKv(int choice) const;

  // Samples the next token from [vocab] logits and sends it. Internal, with nothing sent, where the logits are no
  // numbers.
  Status Step(int choice, absl::Span<const float> logits);

 private:
  StatusOr<std::vector<KeptSlots>> TakeKept(const proto::HandoffRecord& record) const;
  void Send(int choice, proto::GenerateEvent event, bool last);

  const ModelFacts* model_;
  const RequestId id_;
  const HandoffExpectation expected_;
  const std::shared_ptr<TokenStream> stream_;
  const std::vector<TokenId> prompt_;
  const CachePolicy policy_;

  absl::Time first_arrival_ = absl::InfiniteFuture();

  GenerationContext context_;  // of the choices; its address is part of them
  std::vector<Generation> choices_;
  std::vector<KeptSlots> kept_;  // likewise by choice, of those that go on under a policy
  proto::Usage usage_;
  proto::StageTimes times_;
  proto::KvSent kv_;
};

}  // namespace sluice::decode
