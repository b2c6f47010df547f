#include "decode/process.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "common/clock.h"
#include "common/metrics_server.h"
#include "common/process.h"
#include "common/proto/convert.h"
#include "decode/metrics.h"
#include "decode/service.h"
#include "decode/staging.h"
#include "decode/worker.h"
#include "model/checkpoint/checkpoint.h"
#include "model/handoff.h"
#include "model/kept_prompt.h"
#include "model/kept_slots.h"
#include "model/kv_body.h"
#include "model/kv_park.h"
#include "model/kv_pool.h"
#include "model/memory_plan.h"
#include "model/store_counts.h"
#include "model/text/tokenizer.h"
#include "model/ticket.h"
#include "model/transformer.h"
#include "model/worker_model.h"
#include "spdlog/spdlog.h"
#include "transport/backends.h"

namespace sluice {

namespace {

using namespace decode;

constexpr char kTransportBackend[] = "ucx";
constexpr char kTestTransportBackend[] = "faulty-ucx";
constexpr absl::Duration kCallsEndMax = absl::Seconds(1);

// Everything that a decode process is made of. Members are in order of dependence: each uses only what stands above it,
// and Stop ends them from below.
class DecodeProcess {
 public:
  DecodeProcess(const DecodeOptions& options, ClusterKey key) : options_(options), key_(std::move(key)) {}
  ~DecodeProcess() { Stop(); }

  Status Start();
  void Drain();
  void Stop();

 private:
  Status LoadModel();
  Status TakeMemory();
  int ChunkTokens() const { return std::min(options_.local_prefill_chunk_tokens, options_.batch_tokens_max); }
  StatusOr<double> WarmUp();
  Status StartWorker(double prefill_tokens_per_s);
  Status StartService();
  proto::WorkerStatus Identity() const;
  TransformerOptions EngineOptions() const;
  int64_t PoolSlots() const;
  int64_t ParkSlots() const;
  size_t KeptSlotsBytes() const;
  size_t CreditBytes() const { return static_cast<size_t>(options_.staging_bytes / options_.connections_max); }

  const DecodeOptions options_;
  const ClusterKey key_;
  const RealClock clock_;
  const Epoch epoch_ = NewEpoch();
  DecodeMetrics metrics_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Tokenizer> tokenizer_;  // null where the model brings none
  KvPoolOptions kv_options_;
  std::vector<KvCodec> wire_codecs_;  // that KV may come in
  std::unique_ptr<Transformer> transformer_;
  std::unique_ptr<KvPool> pool_;
  std::unique_ptr<KvPark> park_;  // null where nobody is parked
  std::unique_ptr<Staging> staging_;
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<MetricsServer> metrics_server_;
  std::thread engine_thread_;
};

TransformerOptions DecodeProcess::EngineOptions() const {
  const std::vector<CachePolicyKind> policies = options_.Policies();
  const bool ranked = std::any_of(policies.begin(), policies.end(),
                                  [](CachePolicyKind kind) { return CachePolicy{.kind = kind}.ranks_steps(); });
  return {.threads = options_.threads,
          .batch_tokens_max = options_.batch_tokens_max,
          .logit_rows_max = options_.batch_tokens_max,
          .sequence_tokens_max = PoolSlots(),
          .ranked_slots_max = ranked ? PoolSlots() : 0,
          .exact = options_.exact};
}

int64_t DecodeProcess::PoolSlots() const { return int64_t{kv_options_.pages} * kv_options_.page_tokens; }

int64_t DecodeProcess::ParkSlots() const {
  const size_t page_bytes = Bytes(kv_options_.layout, kv_options_.codec, kv_options_.page_tokens);
  return options_.kv_park_bytes / static_cast<int64_t>(page_bytes) * kv_options_.page_tokens;
}

// Of whatever requests pool and park can hold, under the policy that takes most, and of one message on its way in that
// tells what is kept of the longest prompt.
size_t DecodeProcess::KeptSlotsBytes() const {
  size_t bytes = 0;
  const int64_t prompt_tokens = std::min(PoolSlots(), int64_t{checkpoint_->config().context_tokens_max});
  for (const CachePolicyKind kind : options_.Policies()) {
    if (kind == CachePolicyKind::kFull) continue;
    const CachePolicy policy = {.kind = kind, .budget = prompt_tokens};
    bytes = std::max(bytes, KeptSlots::Bytes(policy, kv_options_.layout, PoolSlots() + ParkSlots()) +
                                KeptPromptMemoryBytes(policy, kv_options_.layout, prompt_tokens));
  }
  return bytes;
}

proto::WorkerStatus DecodeProcess::Identity() const {
  const ModelConfig& config = checkpoint_->config();
  proto::WorkerStatus identity;
  identity.set_role("decode");
  identity.set_epoch(epoch_.value);
  identity.set_model_name(config.name);
  identity.set_model_hash(checkpoint_->model_hash());
  *identity.mutable_layout() = ToProto(kv_options_.layout);
  identity.set_page_tokens(static_cast<uint32_t>(kv_options_.page_tokens));
  *identity.mutable_policy() = ToProto(options_.policy);
  identity.set_local_prefill_tokens_max(static_cast<uint32_t>(options_.local_prefill_tokens_max));
  identity.set_store_codec(std::string(Name(kv_options_.codec)));
  for (const KvCodec codec : wire_codecs_) identity.add_wire_codecs(std::string(Name(codec)));
  identity.set_vocab_size(static_cast<uint32_t>(config.vocab_size));
  identity.set_context_tokens_max(static_cast<uint32_t>(config.context_tokens_max));
  return identity;
}

Status DecodeProcess::Start() {
  SLUICE_RETURN_IF_ERROR(LoadModel());
  SLUICE_RETURN_IF_ERROR(TakeMemory());
  SLUICE_ASSIGN_OR_RETURN(const double prefill_tokens_per_s, WarmUp());
  SLUICE_RETURN_IF_ERROR(StartWorker(prefill_tokens_per_s));
  SLUICE_RETURN_IF_ERROR(StartService());
  spdlog::info("decode {}: control on {}, KV on {}, metrics on {}", checkpoint_->config().name, service_->address(),
               transport_->address(), metrics_server_->address());
  return Announce(options_.announce_fd, {{"role", "decode"},
                                         {"grpc", service_->address()},
                                         {"kv", transport_->address()},
                                         {"metrics", metrics_server_->address()}});
}

Status DecodeProcess::LoadModel() {
  SLUICE_ASSIGN_OR_RETURN(WorkerModel model, OpenWorkerModel(options_.model_path, options_.kv_store,
                                                             options_.page_tokens, options_.kv_memory_bytes));
  checkpoint_ = std::move(model.checkpoint);
  tokenizer_ = std::move(model.tokenizer);
  kv_options_ = model.kv;
  SLUICE_ASSIGN_OR_RETURN(wire_codecs_, ChooseWireCodecs(options_.kv_wire, kv_options_.layout));
  for (const KvCodec codec : wire_codecs_) {
    const size_t token = BodyBytes(kv_options_.layout, codec, 1, 1);
    if (token <= CreditBytes()) continue;
    return absl::InvalidArgumentError(absl::StrCat("a token's KV of one layer has ", token, " bytes in ",
                                                   std::string(Name(codec)), "; the credit of one of ",
                                                   options_.connections_max, " connections is ", CreditBytes()));
  }
  return absl::OkStatus();
}

Status DecodeProcess::TakeMemory() {
  SLUICE_ASSIGN_OR_RETURN(const Transformer::Memory model, Transformer::Plan(*checkpoint_, EngineOptions()));
  SLUICE_ASSIGN_OR_RETURN(const MachineMemory machine, ReadMachineMemory());
  const bool park_in_memory = options_.kv_park_folder.empty();
  const MemoryPlan plan =
      MakeMemoryPlan(machine, model, kv_options_,
                     {{"staging", static_cast<size_t>(options_.staging_bytes)},
                      {"positions and scores", KeptSlotsBytes()},
                      {"parked KV", park_in_memory ? static_cast<size_t>(options_.kv_park_bytes) : 0},
                      {"servers", kServersBytes}});
  spdlog::info("memory: {}", plan.ToString());
  metrics_.memory_planned_bytes.Set(static_cast<double>(plan.total_bytes()));
  SLUICE_RETURN_IF_ERROR(CheckFits(plan, machine, std::nullopt));
  SLUICE_ASSIGN_OR_RETURN(transformer_, Transformer::Create(checkpoint_.get(), EngineOptions()));
  SLUICE_ASSIGN_OR_RETURN(pool_, KvPool::Create(kv_options_));
  if (options_.kv_park_bytes > 0) {
    SLUICE_ASSIGN_OR_RETURN(
        park_, KvPark::Create({.bytes = static_cast<size_t>(options_.kv_park_bytes), .folder = options_.kv_park_folder},
                              pool_->page_bytes()));
  }
  SLUICE_ASSIGN_OR_RETURN(staging_, Staging::Create(static_cast<size_t>(options_.staging_bytes)));
  return absl::OkStatus();
}

// Faults in what the first request would wait for, and measures how fast prompts would be computed here.
StatusOr<double> DecodeProcess::WarmUp() {
  const std::vector<TokenId> tokens(
      static_cast<size_t>(std::min(ChunkTokens(), checkpoint_->config().context_tokens_max)), 0);
  SLUICE_ASSIGN_OR_RETURN(const PageLease lease, pool_->Lease(pool_->PagesFor(static_cast<int64_t>(tokens.size()))));
  Batch batch;
  batch.sequences.push_back({.tokens = absl::MakeConstSpan(tokens).first(1),
                             .pages = lease.pages(),
                             .logits = LogitsFor::kLast,
                             .generated = true});
  SLUICE_RETURN_IF_ERROR(WithContext(transformer_->Forward(batch, *pool_).status(), "warm-up"));
  if (options_.local_prefill_tokens_max == 0) return 0.0;
  batch.sequences[0].tokens = tokens;
  batch.sequences[0].generated = false;
  SLUICE_RETURN_IF_ERROR(WithContext(transformer_->Forward(batch, *pool_).status(), "warm-up"));
  const absl::Time began = clock_.Now();
  SLUICE_RETURN_IF_ERROR(WithContext(transformer_->Forward(batch, *pool_).status(), "warm-up"));
  return static_cast<double>(tokens.size()) / std::max(1e-6, absl::ToDoubleSeconds(clock_.Now() - began));
}

Status DecodeProcess::StartWorker(double prefill_tokens_per_s) {
  const ModelConfig& config = checkpoint_->config();
  const size_t rest_of_commit =
      HandoffRecordBytesMax({.prompt_tokens = config.context_tokens_max, .n = SamplingParams::kMaxChoices});
  std::random_device random;
  WorkerOptions worker_options = {
      .scheduler = {.batch_sequences_max = options_.batch_tokens_max, .admitted_max = options_.sequences_max},
      .reservations = {.lease = absl::Milliseconds(options_.lease_ms),
                       .queue_wait_max = absl::Milliseconds(options_.queue_wait_ms),
                       .reservations_max = options_.requests_max,
                       .prefix_cache_pages =
                           options_.prefix_cache_pages < 0 ? pool_->pages_total() : options_.prefix_cache_pages,
                       .prefix_cache_keep = absl::Milliseconds(options_.prefix_cache_keep_ms),
                       .id_key = (uint64_t{random()} << 32) | random()},
      .mailbox_messages_max = options_.mailbox_messages_max,
      .stream_tokens_max = options_.stream_tokens_max,
      .local_prefill_tokens_max = options_.local_prefill_tokens_max,
      .local_prefill_chunk_tokens = ChunkTokens(),
      .prefill_tokens_per_s_guess = prefill_tokens_per_s,
      .identity = Identity(),
      .policies = {.deployments = options_.policy,
                   .allowed = options_.Policies(),
                   .layout = kv_options_.layout,
                   .context_tokens_max = config.context_tokens_max,
                   .kept_bytes_max = kPayloadBytesMax - std::min(rest_of_commit, kPayloadBytesMax)},
      .store = kv_options_.codec,
      .wire = wire_codecs_,
      .connections_max = options_.connections_max,
      .credit_bytes = CreditBytes()};
  const ModelFacts facts = {.tokenizer = tokenizer_.get(),
                            .eos_ids = config.eos_ids,
                            .vocab_size = config.vocab_size,
                            .context_tokens_max = config.context_tokens_max,
                            .layout = kv_options_.layout};
  worker_ = std::make_unique<Worker>(
      std::move(worker_options), facts, key_,
      [this, stored = StoreCounts(kv_options_.codec, &metrics_.stored_values_saturated,
                                  &metrics_.stored_rows_nonfinite)](const Batch& batch, KvPool& pool) mutable {
        auto logits = transformer_->Forward(batch, pool);
        stored.Update(transformer_->kv_counts());
        return logits;
      },
      pool_.get(), staging_.get(), &clock_, &metrics_, park_.get());
  SLUICE_ASSIGN_OR_RETURN(FaultPolicy faults, FaultPolicy::Parse(options_.kv_test_faults));
  SLUICE_ASSIGN_OR_RETURN(transport_, CreateTransport(faults.rules.empty() ? kTransportBackend : kTestTransportBackend,
                                                      {.listen_address = options_.kv_listen,
                                                       .advertise_host = options_.kv_advertise_host,
                                                       .interface = options_.kv_interface,
                                                       .auth_key = key_.bytes(),
                                                       .faults = faults},
                                                      worker_->receiver()));
  worker_->Start(transport_.get());
  engine_thread_ = std::thread([this] { worker_->Run(); });
  return absl::OkStatus();
}

Status DecodeProcess::StartService() {
  SLUICE_ASSIGN_OR_RETURN(service_, Service::Create(options_.listen, worker_.get()));
  SLUICE_ASSIGN_OR_RETURN(metrics_server_, MetricsServer::Create(options_.metrics_listen, metrics_.metrics));
  return absl::OkStatus();
}

void DecodeProcess::Drain() {
  // The engine thread may notify after we have stopped waiting, until it has ended.
  absl::Notification drained;
  worker_->Drain(&drained);
  const absl::Duration patience = absl::Milliseconds(options_.drain_ms);
  spdlog::info("draining, for at most {}", absl::FormatDuration(patience));
  if (!drained.WaitForNotificationWithTimeout(patience)) spdlog::warn("giving up requests that still run");
  Stop();
}

void DecodeProcess::Stop() {
  // The engine ends every stream and answers every call; then calls end by themselves; then the wire goes quiet.
  if (engine_thread_.joinable()) {
    worker_->Stop();
    engine_thread_.join();
  }
  if (service_ != nullptr) service_->Shutdown(clock_.Now() + kCallsEndMax);
  service_.reset();
  transport_.reset();
}

}  // namespace

Status RunDecode(const DecodeOptions& options) {
  SLUICE_RETURN_IF_ERROR(options.Validate());
  // A wrong key is known at once, not after a long load.
  SLUICE_ASSIGN_OR_RETURN(ClusterKey key, ClusterKey::Load(options.cluster_key, options.cluster_key_file));
  TerminationSignals signals;
  DecodeProcess process(options, std::move(key));
  SLUICE_RETURN_IF_ERROR(process.Start());
  spdlog::info("signal {}", signals.Wait());
  process.Drain();
  return absl::OkStatus();
}

}  // namespace sluice
