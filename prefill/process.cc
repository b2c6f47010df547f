#include "prefill/process.h"

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/metrics_server.h"
#include "common/process.h"
#include "model/checkpoint/checkpoint.h"
#include "model/handoff.h"
#include "model/kv_pool.h"
#include "model/memory_plan.h"
#include "model/store_counts.h"
#include "model/text/tokenizer.h"
#include "model/ticket.h"
#include "model/transformer.h"
#include "model/worker_model.h"
#include "prefill/kv_sender.h"
#include "prefill/metrics.h"
#include "prefill/service.h"
#include "prefill/worker.h"
#include "spdlog/spdlog.h"
#include "transport/backends.h"

namespace sluice {

namespace {

using namespace prefill;

constexpr char kTransportBackend[] = "ucx";
constexpr char kTestTransportBackend[] = "faulty-ucx";
constexpr int kLogitRowsMax = 32;  // prompts that end in one step
constexpr absl::Duration kCallsEndMax = absl::Seconds(1);

// Everything that a prefill process is made of. Members are in order of dependence: each uses only what stands above
// it, and Stop ends them from below.
class PrefillProcess {
 public:
  PrefillProcess(const PrefillOptions& options, ClusterKey key) : options_(options), key_(std::move(key)) {}
  ~PrefillProcess() { Stop(); }

  Status Start();
  void Drain();
  void Stop();

 private:
  Status LoadModel();
  Status TakeMemory();
  StatusOr<double> WarmUp();
  Status StartWorker(double tokens_per_s);
  Status StartService();
  KvSenderOptions SenderOptions() const;
  proto::KvLayout Layout() const { return ToProto(kv_options_.layout); }
  TransformerOptions EngineOptions() const;
  int64_t PoolTokens() const { return int64_t{kv_options_.pages} * kv_options_.page_tokens; }
  int64_t PruningBytesMax() const;

  const PrefillOptions options_;
  const ClusterKey key_;
  const RealClock clock_;
  const Epoch epoch_ = NewEpoch();
  PrefillMetrics metrics_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Tokenizer> tokenizer_;  // null where the model brings none
  KvPoolOptions kv_options_;
  std::vector<KvCodec> wire_codecs_;  // that KV may travel in
  std::unique_ptr<KvPool> pool_;
  std::unique_ptr<Transformer> transformer_;
  std::unique_ptr<KvSender> sender_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<MetricsServer> metrics_server_;
  std::thread sender_thread_;
  std::thread engine_thread_;
};

TransformerOptions PrefillProcess::EngineOptions() const {
  return {.threads = options_.threads,
          .batch_tokens_max = options_.batch_tokens_max,
          .logit_rows_max = kLogitRowsMax,
          .sequence_tokens_max = PoolTokens(),
          .exact = options_.exact};
}

// Of the longest prompt that can come, under the policy that takes most: decode chooses, and more prompts share it.
int64_t PrefillProcess::PruningBytesMax() const {
  return Pruning::BytesMax(kv_options_.layout,
                           std::min(PoolTokens(), int64_t{checkpoint_->config().context_tokens_max}));
}

KvSenderOptions PrefillProcess::SenderOptions() const {
  return {.hello = MakeHello("prefill", epoch_, checkpoint_->model_hash(), Layout(), kv_options_.codec, wire_codecs_),
          .wire_adapts = options_.kv_wire == kWireAuto,
          .send_memory_bytes = static_cast<size_t>(options_.send_memory_bytes),
          .connection_bytes_in_flight_max = static_cast<size_t>(options_.connection_bytes_in_flight_max),
          .frame_bytes_min = static_cast<size_t>(options_.frame_bytes_min),
          .frame_bytes_max = static_cast<size_t>(options_.frame_bytes_max),
          .connections_max = options_.connections_max,
          .connect_timeout = options_.connect_timeout,
          .result_timeout = options_.result_timeout};
}

Status PrefillProcess::Start() {
  SLUICE_RETURN_IF_ERROR(LoadModel());
  SLUICE_RETURN_IF_ERROR(TakeMemory());
  SLUICE_ASSIGN_OR_RETURN(const double tokens_per_s, WarmUp());
  SLUICE_RETURN_IF_ERROR(StartWorker(tokens_per_s));
  SLUICE_RETURN_IF_ERROR(StartService());
  spdlog::info("prefill {}: control on {}, metrics on {}, {:.0f} tokens/s", checkpoint_->config().name,
               service_->address(), metrics_server_->address(), tokens_per_s);
  return Announce(options_.announce_fd,
                  {{"role", "prefill"}, {"grpc", service_->address()}, {"metrics", metrics_server_->address()}});
}

Status PrefillProcess::LoadModel() {
  SLUICE_ASSIGN_OR_RETURN(WorkerModel model, OpenWorkerModel(options_.model_path, options_.kv_store,
                                                             options_.page_tokens, options_.kv_memory_bytes));
  checkpoint_ = std::move(model.checkpoint);
  tokenizer_ = std::move(model.tokenizer);
  kv_options_ = model.kv;
  const bool named = options_.kv_wire != kWireAuto && options_.kv_wire != kWireStore;
  const std::string_view wire = named ? std::string_view(options_.kv_wire) : kWireAuto;
  SLUICE_ASSIGN_OR_RETURN(wire_codecs_, ChooseWireCodecs(wire, kv_options_.layout));
  return absl::OkStatus();
}

Status PrefillProcess::TakeMemory() {
  SLUICE_ASSIGN_OR_RETURN(const Transformer::Memory model, Transformer::Plan(*checkpoint_, EngineOptions()));
  SLUICE_ASSIGN_OR_RETURN(const MachineMemory machine, ReadMachineMemory());
  const MemoryPlan plan = MakeMemoryPlan(machine, model, kv_options_,
                                         {{"send buffers", KvSender::MemoryBytes(SenderOptions())},
                                          {"positions and scores", static_cast<size_t>(PruningBytesMax())},
                                          {"servers", kServersBytes}});
  spdlog::info("memory: {}", plan.ToString());
  metrics_.memory_planned_bytes.Set(static_cast<double>(plan.total_bytes()));
  SLUICE_RETURN_IF_ERROR(CheckFits(plan, machine, std::nullopt));
  SLUICE_ASSIGN_OR_RETURN(transformer_, Transformer::Create(checkpoint_.get(), EngineOptions()));
  SLUICE_ASSIGN_OR_RETURN(pool_, KvPool::Create(kv_options_));
  return absl::OkStatus();
}

// Faults in what the first request would wait for, and gives the router a rate before there is one.
StatusOr<double> PrefillProcess::WarmUp() {
  const ModelConfig& config = checkpoint_->config();
  const int64_t tokens =
      std::min({int64_t{options_.batch_tokens_max}, int64_t{config.context_tokens_max}, PoolTokens()});
  std::vector<TokenId> ids;
  for (int64_t i = 0; i < tokens; ++i) ids.push_back(static_cast<TokenId>(i % config.vocab_size));
  SLUICE_ASSIGN_OR_RETURN(const PageLease lease, pool_->Lease(pool_->PagesFor(tokens)));
  Batch batch;
  batch.sequences.push_back({.tokens = ids, .pages = lease.pages(), .logits = LogitsFor::kLast});
  SLUICE_RETURN_IF_ERROR(transformer_->Forward(batch, *pool_).status());
  const absl::Time began = clock_.Now();
  SLUICE_RETURN_IF_ERROR(transformer_->Forward(batch, *pool_).status());
  return static_cast<double>(tokens) / std::max(1e-6, absl::ToDoubleSeconds(clock_.Now() - began));
}

Status PrefillProcess::StartWorker(double tokens_per_s) {
  SLUICE_ASSIGN_OR_RETURN(sender_, KvSender::Create(SenderOptions(), pool_.get(), &clock_, &metrics_));
  // Peers that cannot prove to know the key are refused on the transport's own port.
  SLUICE_ASSIGN_OR_RETURN(FaultPolicy faults, FaultPolicy::Parse(options_.kv_test_faults));
  SLUICE_ASSIGN_OR_RETURN(
      transport_, CreateTransport(faults.rules.empty() ? kTransportBackend : kTestTransportBackend,
                                  {.interface = options_.kv_interface, .auth_key = key_.bytes(), .faults = faults},
                                  sender_->receiver()));
  const ModelConfig& config = checkpoint_->config();
  SLUICE_ASSIGN_OR_RETURN(const SendWhen send_when, ParseSendWhen(options_.send));
  const WorkerOptions worker_options = {
      .limits = {.batch_tokens_max = options_.batch_tokens_max, .logit_rows_max = kLogitRowsMax},
      .requests_max = options_.requests_max,
      .queued_tokens_max = options_.queued_tokens_max,
      .tokens_per_s_guess = tokens_per_s,
      .send_when = send_when,
      .prefix_cache_pages = options_.prefix_cache_pages < 0 ? pool_->pages_total() : options_.prefix_cache_pages,
      .pruning_bytes_max = PruningBytesMax(),
      .vocab_size = config.vocab_size,
      .context_tokens_max = config.context_tokens_max,
      .eos_ids = config.eos_ids};
  worker_ = std::make_unique<Worker>(
      worker_options,
      [this, stored = StoreCounts(kv_options_.codec, &metrics_.stored_saturated_values,
                                  &metrics_.stored_nonfinite_rows)](const Batch& batch) mutable {
        auto logits = transformer_->Forward(batch, *pool_);
        stored.Update(transformer_->kv_counts());
        return logits;
      },
      pool_.get(), tokenizer_.get(), sender_.get(), &metrics_, &clock_);
  sender_->Attach(transport_.get(),
                  [this](TransferId id, const TransferReport& report) { worker_->TransferEnded(id, report); });
  sender_thread_ = std::thread([this] { sender_->Serve(); });
  engine_thread_ = std::thread([this] { worker_->Serve(); });
  return absl::OkStatus();
}

Status PrefillProcess::StartService() {
  const ModelConfig& config = checkpoint_->config();
  const proto::Hello hello = SenderOptions().hello;
  ServiceOptions service_options = {.listen = options_.listen,
                                    .request_bytes_max = static_cast<int>(options_.request_bytes_max),
                                    .limits = {.model_hash = checkpoint_->model_hash(),
                                               .layout_hash = LayoutHash(Layout()),
                                               .wire_codecs = {hello.wire_codecs().begin(), hello.wire_codecs().end()},
                                               .vocab_size = config.vocab_size,
                                               .context_tokens_max = config.context_tokens_max,
                                               .has_tokenizer = tokenizer_ != nullptr}};
  proto::WorkerStatus& fixed = service_options.fixed_status;
  fixed.set_role("prefill");
  fixed.set_epoch(epoch_.value);
  fixed.set_model_name(config.name);
  fixed.set_model_hash(checkpoint_->model_hash());
  *fixed.mutable_layout() = Layout();
  fixed.set_page_tokens(static_cast<uint32_t>(kv_options_.page_tokens));
  fixed.set_store_codec(std::string(Name(kv_options_.codec)));
  *fixed.mutable_wire_codecs() = hello.wire_codecs();
  fixed.set_vocab_size(static_cast<uint32_t>(config.vocab_size));
  fixed.set_context_tokens_max(static_cast<uint32_t>(config.context_tokens_max));
  fixed.set_kv_pages_total(static_cast<uint32_t>(pool_->pages_total()));
  SLUICE_ASSIGN_OR_RETURN(service_, Service::Create(service_options, key_, worker_.get(), &metrics_, &clock_));
  SLUICE_ASSIGN_OR_RETURN(metrics_server_, MetricsServer::Create(options_.metrics_listen, metrics_.all()));
  return absl::OkStatus();
}

void PrefillProcess::Drain() {
  spdlog::info("draining: {} requests run, for at most {}", worker_->load().requests,
               absl::FormatDuration(options_.drain_max));
  if (!worker_->Drain(clock_.Now() + options_.drain_max))
    spdlog::warn("giving up {} requests that still run", worker_->load().requests);
}

void PrefillProcess::Stop() {
  // The engine gives up what is left and answers; then calls end by themselves; the sender has nothing to do any more.
  if (engine_thread_.joinable()) {
    worker_->Stop();
    engine_thread_.join();
  }
  if (service_ != nullptr) service_->Shutdown(clock_.Now() + kCallsEndMax);
  if (sender_thread_.joinable()) {
    sender_->Stop();
    sender_thread_.join();
  }
  transport_.reset();
}

}  // namespace

Status RunPrefill(const PrefillOptions& options) {
  SLUICE_RETURN_IF_ERROR(options.Validate());
  // A wrong key is known at once, not after a long load.
  SLUICE_ASSIGN_OR_RETURN(ClusterKey key, ClusterKey::Load(options.cluster_key, options.cluster_key_file));
  TerminationSignals signals;
  PrefillProcess process(options, std::move(key));
  SLUICE_RETURN_IF_ERROR(process.Start());
  const int signal = signals.Wait();
  spdlog::info("signal {}", signal);
  process.Drain();
  process.Stop();
  return absl::OkStatus();
}

}  // namespace sluice
