// The engine thread of a decode process: owns the KV pool's leases, reservations, requests and sequences, and runs the
// model. Everybody else sends it messages through one bounded mailbox; it answers through the callbacks that come with
// them, so nobody waits for a step.
//
// A turn is: take the messages, end what is overdue, run one step of the sequences that the scheduler chose, and then
// one chunk of the oldest prompt that decode computes itself, so that those cost a running sequence no more than a
// chunk between two of its tokens. The thread sleeps until the next message or the next deadline, so that deadlines
// need no traffic to fire. Tests take turns by hand under a manual clock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mailbox.h"
#include "common/proto/worker.pb.h"
#include "common/status.h"
#include "decode/kv_receiver.h"
#include "decode/local_prefill.h"
#include "decode/metrics.h"
#include "decode/policy_choice.h"
#include "decode/quarantine.h"
#include "decode/request.h"
#include "decode/reservations.h"
#include "decode/scheduler.h"
#include "decode/token_stream.h"
#include "model/kv_park.h"
#include "model/kv_pool.h"
#include "model/ticket.h"
#include "model/transformer.h"

namespace sluice::decode {

// One step of the model: Transformer::Forward, or what a test puts in its place.
using ForwardFunction = std::function<StatusOr<absl::Span<const float>>(const Batch&, KvPool&)>;

struct WorkerOptions {
  SchedulerLimits scheduler;
  ReservationsOptions reservations;
  int mailbox_messages_max = 0;
  int stream_tokens_max = 0;
  int64_t local_prefill_tokens_max = 0;   // rests of prompts that decode may compute itself; 0: none
  int local_prefill_chunk_tokens = 1;     // of them between two steps
  double prefill_tokens_per_s_guess = 0;  // of computing them, until measured
  // Who we are: role, epoch, model and layout. GetStatus adds what changes.
  proto::WorkerStatus identity;
  PolicyLimits policies;
  KvCodec store = KvCodec::kBf16;
  std::vector<KvCodec> wire;  // that it takes
  int connections_max = 0;
  uint64_t credit_bytes = 0;  // of each: KV payload that may be on its way
};

class Worker {
 public:
  // Everything pointed to outlives the worker. Without `park`, every worst case is leased and nobody is parked.
  Worker(WorkerOptions options, const ModelFacts& model, const ClusterKey& key, ForwardFunction forward, KvPool* pool,
         Staging* staging, const Clock* clock, DecodeMetrics* metrics, KvPark* park = nullptr);
  ~Worker();

  Receiver* receiver() { return &receiver_; }
  // Before the first turn: where KV arrives.
  void Start(Transport* transport);

  // --- any thread; `done` is called once, on the engine thread, or at once where the mailbox is full or shut ---
  template <typename Reply>
  using Done = std::function<void(StatusOr<Reply>)>;
  void GetStatus(Done<proto::WorkerStatus> done);
  void Reserve(proto::ReserveRequest request, Done<proto::ReserveReply> done);
  void Rearm(proto::RearmRequest request, Done<proto::ReserveReply> done);
  void Release(proto::ReleaseRequest request, Done<proto::ReleaseReply> done);
  // The stream of a reservation's tokens. Its reader says Detach at the end, however it ends.
  void Attach(proto::GenerateRequest request, Done<std::shared_ptr<TokenStream>> done);
  void Detach(proto::GenerateRequest request);

  // New reservations are refused from now on; `drained` is notified when nothing is reserved any more.
  void Drain(absl::Notification* drained);
  // Run returns; what is left ends with Unavailable.
  void Stop();

  // --- the engine thread ---
  void Run();
  // One turn; waits for a message until `wait_until` at the longest.
  void Turn(absl::Time wait_until);
  // When the next turn is due without a message; InfinitePast: at once.
  absl::Time NextTurn() const;

 private:
  struct StatusCall {
    Done<proto::WorkerStatus> done;
  };
  struct ReserveCall {
    proto::ReserveRequest request;
    Done<proto::ReserveReply> done;
  };
  struct RearmCall {
    proto::RearmRequest request;
    Done<proto::ReserveReply> done;
  };
  struct ReleaseCall {
    proto::ReleaseRequest request;
    Done<proto::ReleaseReply> done;
  };
  struct AttachCall {
    proto::GenerateRequest request;
    Done<std::shared_ptr<TokenStream>> done;
  };
  struct ReaderLeft {
    proto::GenerateRequest request;
  };
  struct ReaderCaughtUp {};  // nothing but a reason to look again
  struct DrainOrder {
    absl::Notification* drained;
  };
  struct StopOrder {};
  using Message = std::variant<StatusCall, ReserveCall, RearmCall, ReleaseCall, AttachCall, ReaderLeft, ReaderCaughtUp,
                               TransferProgress, TransferComplete, TransferLost, PagesQuiet, DrainOrder, StopOrder>;

  struct Sequence {
    ReservationId reservation;
    int choice = 0;
    bool admitted = false;
    bool wants_page = false;  // found none for its next token when it was last looked at
    uint64_t last_turn = 0;
  };

  template <typename Call>
  void PostCall(Call call);

  void Handle(StatusCall call);
  void Handle(ReserveCall call);
  void Handle(RearmCall call);
  void Handle(ReleaseCall call);
  void Handle(AttachCall call);
  void Handle(ReaderLeft message);
  void Handle(ReaderCaughtUp) {}
  void Handle(TransferProgress);
  void Handle(TransferComplete complete);
  void Handle(TransferLost lost);
  void Handle(PagesQuiet quiet);
  void Handle(DrainOrder order);
  void Handle(StopOrder);

  Status CheckPrompt(const proto::ReserveRequest& request) const;
  StatusOr<CachePolicy> PolicyOf(const proto::ReserveRequest& request) const;
  StatusOr<proto::ReserveReply> TryReserve(const proto::ReserveRequest& request);
  LocalPrefillFacts Facts(const proto::ShipTime& ship, const Reservation& reservation) const;
  proto::ReserveReply TakeOn(const Reservation& reservation, const proto::ReserveRequest& request);
  proto::ReserveReply GiveUp(const Reservation& reservation);  // which is gone afterwards
  proto::ReserveReply Promise(const Reservation& reservation);
  void OpenTransfer(const Reservation& reservation);
  // Its pages may be given to others, or else (false) are quarantined.
  bool CloseTransfer(ReservationId id, const Status& why);

  KvCoarseness CoarsenessOf(KvCodec wire) const;
  // False where the transfer has no edge for it: it is over.
  bool FailTransfer(TransferKey key, const Status& why);
  void StartDecoding(ReservationId id, Request& request);
  void Complete(ReservationId id);
  void FailRequest(ReservationId id, const Status& why);

  void ExpireOverdue();
  absl::Time NextDeadline() const { return std::min(reservations_.NextDeadline(), quarantine_.NextDeadline()); }
  // Ends a request whose pages are back already: its stream, its transfer, its sequences.
  void Forget(ReservationId id, const Status& why);
  void Fail(ReservationId id, const Status& why);
  void DropSequences(ReservationId id);

  std::vector<SequenceTurn> Turns() const;
  bool HasWork() const;
  bool PagesHaveComeBack() const;
  void Step();
  // Which requests have no use for pages until they are read.
  void NoteReaders();
  // Parked requests come back as long as there is room.
  void ReturnParked();
  void LookForPagesAgain();
  // Of the sequences chosen for a step those that run it: pages for the new tokens are found, the oldest request's
  // first, and where there is none the youngest requests are parked.
  std::vector<std::pair<ReservationId, int>> MakeRoom(const std::vector<int>& step);
  bool MakeRoomFor(const Sequence& sequence, std::optional<std::pair<ReservationId, Status>>* not_parked);
  Status Park(ReservationId id);
  void RunChunk();
  void FinishPrefill(absl::Span<const float> logits);
  void RunBatch(const std::vector<std::pair<ReservationId, int>>& chosen);
  void RunAlone(ReservationId id, int choice);
  SequenceChunk ChunkOf(ReservationId id, int choice);
  void OnLogits(ReservationId id, int choice, absl::Span<const float> logits);

  int64_t SlotsUsed() const;
  void UpdateGauges();

  const WorkerOptions options_;
  const ModelFacts model_;
  const ClusterKey key_;
  const ForwardFunction forward_;
  KvPool* const pool_;
  KvPark* const park_;
  Staging* const staging_;
  const Clock* const clock_;
  DecodeMetrics* const metrics_;

  Mailbox<Message> mailbox_;
  KvReceiver receiver_;
  Transport* transport_ = nullptr;
  Reservations reservations_;
  // The pages that an open transfer writes into, held a second time: so nobody gets them before that is over.
  struct Incoming {
    Tenure tenure;
    PageLease pages;
  };
  std::unordered_map<ReservationId, Incoming> incoming_;
  Quarantine quarantine_;
  std::unordered_map<ReservationId, std::unique_ptr<Request>> requests_;  // one for each reservation
  // A prompt that decode computes itself.
  struct LocalPrefill {
    ReservationId reservation;
    GenerationContext context;
    proto::SamplingParams sampling;
    int64_t computed_tokens = 0;  // those that were cached included
    absl::Time accepted;
    std::optional<absl::Time> started;
  };
  std::deque<LocalPrefill> prefills_;  // the oldest first
  double prefill_tokens_per_s_ = 0;
  double step_seconds_ = 0;          // of the latest steps, decayed
  std::vector<Sequence> sequences_;  // in order of commits
  uint64_t turns_taken_ = 0;
  int64_t evictions_counted_ = 0;
  KvCoarseness link_coarseness_ = 0;  // of the KV that came last: what the next transfer is likely to bring
  bool draining_ = false;
  absl::Notification* drained_ = nullptr;  // to be notified once
  bool stopping_ = false;
};

}  // namespace sluice::decode
