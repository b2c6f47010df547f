// The engine of a prefill process: prompts in, their KV and first tokens out to the sender. Owns the KV pool's pages
// and every prompt; runs on one thread, which is away for a step's computation at a time, so that whatever must be said
// at once (refusals, load) is said by Submit and load() from a small account under a mutex.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/mailbox.h"
#include "common/proto/worker.pb.h"
#include "common/status.h"
#include "model/generation.h"
#include "model/kv_body.h"
#include "model/kv_pool.h"
#include "model/prefix_tree.h"
#include "model/transformer.h"
#include "prefill/kv_sender.h"
#include "prefill/lifecycle.h"
#include "prefill/metrics.h"
#include "prefill/options.h"
#include "prefill/pruning.h"
#include "prefill/scheduler.h"

namespace sluice::prefill {

using PromptId = Id<struct PromptIdTag>;

struct WorkerOptions {
  SchedulerLimits limits;
  int requests_max = 0;
  int64_t queued_tokens_max = 0;
  double tokens_per_s_guess = 0;  // until steps have been measured
  SendWhen send_when = SendWhen::kLayer;
  int prefix_cache_pages = 0;     // that finished prompts may keep; 0: none
  int64_t pruning_bytes_max = 0;  // of all prompts that are pruned, see Pruning::BytesToCompute; others wait for it
  // Of the model.
  int vocab_size = 0;
  int64_t context_tokens_max = 0;
  std::vector<TokenId> eos_ids;
};

class Worker {
 public:
  // Runs a batch and returns its logits: Transformer::Forward on the pool.
  using Forward = std::function<StatusOr<absl::Span<const float>>(const Batch&)>;
  using Done = std::function<void(const StatusOr<proto::PrefillReply>&)>;

  // `tokenizer` may be null (see GenerationContext). Everything outlives this.
  Worker(const WorkerOptions& options, Forward forward, KvPool* pool, const Tokenizer* tokenizer, KvSender* sender,
         PrefillMetrics* metrics, const Clock* clock);

  // --- any thread ---

  // Accepts a request whose ticket and fields were checked (admission.h). `done` is called once, on the engine thread.
  // ResourceExhausted where the queue is full, OutOfRange for a prompt that the whole pool or all memory for pruning
  // cannot hold, Unavailable while draining; `done` is then not called.
  StatusOr<PromptId> Submit(proto::PrefillRequest request, proto::Ticket ticket, Done done);
  // Nobody waits for the answer any more. Does nothing where it was given.
  void Cancel(PromptId id);
  // For KvSender::Attach.
  void TransferEnded(TransferId id, const TransferReport& report);

  struct Load {
    int requests = 0;
    int64_t queued_tokens = 0;
    int pages_free = 0;
    int pages_cached = 0;
    double tokens_per_s = 0;
    double transfer_tokens_per_s = 0;  // handed over, once the last of them was computed; 0: not known
    bool draining = false;
  };
  Load load() const;

  // Refuses from now on. True once nothing is left, false at `deadline`.
  bool Drain(absl::Time deadline);
  // Gives up what runs, with Unavailable; Serve returns when the sender has ended its transfers.
  void Stop();

  // --- the engine thread ---

  void Serve();
  // Handles what came and runs one step. Returns when to call it again at the latest.
  absl::Time Step(absl::Time now);

 private:
  using Message = std::function<void()>;

  struct Prompt {
    PromptId id;
    proto::PrefillRequest request;
    proto::Ticket ticket;
    Done done;
    PromptState state = PromptState::kQueued;
    int64_t cached_tokens = 0;    // found in the cache when it started
    int64_t computed_tokens = 0;  // those included
    PrefixTree::Pin pin;          // of the part of its pages that is in the cache
    PageLease pages;
    CachePolicy policy;                // decode's
    std::unique_ptr<Pruning> pruning;  // once it has started, under a policy other than full
    int64_t pruning_bytes = 0;         // that it has of pruning_bytes_max
    GenerationContext generation;
    bool cancelled = false;
    absl::Time arrival;
    absl::Time deadline;
    absl::Time started;
    proto::StageTimes times;
    Status why;  // it was given up

    int64_t tokens() const { return request.prompt_ids_size(); }
    bool prunes() const { return pruning != nullptr && pruning->prunes(); }
  };

  void Accept(std::unique_ptr<Prompt> prompt);
  void OnCancel(PromptId id);
  void OnTransferEnded(PromptId id, const TransferReport& report);
  // Decides and starts prompts until no more can start; `prompts` is what the decision's numbers mean.
  Decision Decide(absl::Time now, std::vector<Prompt*>* prompts);
  PromptView View(const Prompt& prompt) const;
  int PagesFor(const Prompt& prompt) const;
  // What of it may come from the cache: not the last token, whose logits are wanted, nor those whose attention is.
  absl::Span<const TokenId> Reusable(const Prompt& prompt) const;
  int64_t PruningBytesFor(const Prompt& prompt) const;
  void SetPruningBytes(Prompt& prompt, int64_t bytes);
  void Start(Prompt& prompt, absl::Time now);
  void OnLayerAttended(int layer, const std::vector<Chunk>& chunks, const std::vector<Prompt*>& prompts);
  void RunChunks(const std::vector<Chunk>& chunks, const std::vector<Prompt*>& prompts);
  void HandOff(Prompt& prompt, const Chunk& last, absl::Span<const float> logits);
  // Gives the sender what decode lacks of `range`, whose KV is final.
  void SendKv(const Prompt& prompt, KvRange range);
  // The same of some tokens in all layers.
  void SendAllLayers(const Prompt& prompt, int64_t first_token, int64_t tokens);
  void GiveUp(Prompt& prompt, Status why);
  void Answer(Prompt& prompt, const StatusOr<proto::PrefillReply>& reply);
  void CountComputed(int64_t tokens, absl::Duration took);
  void CountHandedOver(int64_t tokens, absl::Duration took);
  void Publish();
  bool Apply(Prompt& prompt, PromptEvent event);

  const WorkerOptions options_;
  const Forward forward_;
  KvPool* const pool_;
  const Tokenizer* const tokenizer_;
  KvSender* const sender_;
  PrefillMetrics* const metrics_;
  const Clock* const clock_;
  Mailbox<Message> mailbox_;

  mutable absl::Mutex mutex_;
  Load load_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;

  // Of the engine thread.
  PrefixTree prefixes_;
  int64_t evictions_counted_ = 0;
  int64_t pruning_bytes_used_ = 0;
  // Ids only grow, so this is the order of arrival.
  std::map<PromptId, std::unique_ptr<Prompt>> prompts_;
  double recent_tokens_ = 0;  // decayed sums: their quotient is the rate
  double recent_seconds_ = 0;
  double handed_over_tokens_ = 0;  // likewise, with each halved at every next one
  double handed_over_seconds_ = 0;
  bool stopping_ = false;
};

}  // namespace sluice::prefill
