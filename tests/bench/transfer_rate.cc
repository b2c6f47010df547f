// Goodput of a handoff without a model: KvSender to KvReceiver over UCX, between two processes of this machine. KV of a
// full pool is framed layer by layer of each chunk as prefill does it, checked, and landed in pages; the clock runs
// from the first Begin until decode's answer to the last commit. tests/bench/transfer_rate.py sets it beside
// ucx_perftest.
//   transfer_rate TOKENS REQUESTS STORE WIRE
// All requests are of the same pages, on either side: what 64 prompts of 32k tokens hold would fit nowhere, and moving
// bytes costs the same. Prints one line of JSON.
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/time/clock.h"
#include "common/crc32c.h"
#include "common/mailbox.h"
#include "common/proto/convert.h"
#include "common/rng.h"
#include "common/sampling_params.h"
#include "decode/kv_receiver.h"
#include "decode/options.h"
#include "model/handoff.h"
#include "model/kv_body.h"
#include "prefill/kv_sender.h"
#include "prefill/options.h"
#include "transport/backends.h"

namespace sluice {
namespace {

// Eight layers of a model of eight billion parameters: 4 KiB of bf16 a token and layer, 1 MiB a chunk and layer.
constexpr KvLayout kLayout = KvLayout::Gqa(8, 8, 128);
constexpr int kChunkTokens = 256;
constexpr int kVocab = 1000;
constexpr uint64_t kReceiverEpoch = 2;

struct Load {
  int tokens;
  int requests;
  KvCodec store;
  KvCodec wire;
};

proto::Hello HelloOf(std::string_view role, uint64_t epoch, const Load& load) {
  return MakeHello(role, {epoch}, "benchmark", ToProto(kLayout), load.store, {load.wire});
}

std::unique_ptr<KvPool> MakePool(const Load& load) {
  auto pool =
      KvPool::Create({.layout = kLayout, .codec = load.store, .page_tokens = 16, .pages = load.tokens / 16 + 1});
  SLUICE_CHECK(pool.ok(), "pool: ", pool.status().ToString());
  return *std::move(pool);
}

// Random rows, the same in each page.
void Fill(KvPool& pool, const PageLease& lease, int tokens) {
  std::vector<float> body(BodyBytes(kLayout, KvCodec::kF32, kLayout.layers, 16) / sizeof(float));
  for (size_t i = 0; i < body.size(); ++i) body[i] = static_cast<float>(RandomBits(1, i) % 2001) * 1e-3f - 1.0f;
  const absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(body.data()), body.size() * sizeof(float));
  for (int first = 0; first < tokens; first += 16) {
    const auto counts = DecodeBody(pool, lease.pages(), {.layers = kLayout.layers, .first_token = first, .tokens = 16},
                                   KvCodec::kF32, bytes);
    SLUICE_CHECK(counts.ok(), "rows: ", counts.status().ToString());
  }
}

double CpuSeconds(int who) {
  rusage usage = {};
  getrusage(who, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

// --- decode's process ---

// Reservation 1 warms the connection up, 2 to requests + 1 are measured.
void OpenAll(decode::KvReceiver& receiver, const Load& load, const PageLease& lease) {
  for (int i = 1; i <= load.requests + 1; ++i) {
    const auto id = static_cast<uint64_t>(i);
    receiver.Open({.key = {{id}, {1}},
                   .handoff = {.request = {id},
                               .prompt_tokens = load.tokens,
                               .kv_tokens = load.tokens,
                               .max_tokens = 2,
                               .vocab_size = kVocab},
                   .pages = {lease.pages().begin(), lease.pages().end()}});
  }
}

[[noreturn]] void RunDecode(int address_fd, int end_fd, const Load& load) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::unique_ptr<KvPool> pool = MakePool(load);
  const StatusOr<PageLease> lease = pool->Lease(pool->PagesFor(load.tokens));
  SLUICE_CHECK(lease.ok());
  Fill(*pool, *lease, load.tokens);  // touched, as decode's pool is
  const DecodeOptions defaults;
  const auto staging = decode::Staging::Create(static_cast<size_t>(defaults.staging_bytes));
  SLUICE_CHECK(staging.ok());
  decode::DecodeMetrics metrics;
  Mailbox<decode::ReceiverEvent> events(1 << 16);
  decode::KvReceiver receiver(
      {.hello = HelloOf("decode", kReceiverEpoch, load),
       .connections_max = defaults.connections_max,
       .credit_bytes = static_cast<uint64_t>(defaults.staging_bytes) / static_cast<uint64_t>(defaults.connections_max)},
      pool.get(), staging->get(), &metrics, [&](decode::ReceiverEvent event) { events.Post(std::move(event)); });
  auto transport = CreateTransport("ucx", {.listen_address = "127.0.0.1:0"}, &receiver);
  SLUICE_CHECK(transport.ok(), "transport: ", transport.status().ToString());
  receiver.Start(transport->get());
  OpenAll(receiver, load, *lease);
  const std::string address = (*transport)->address();
  SLUICE_CHECK(write(address_fd, address.data(), address.size()) == static_cast<ssize_t>(address.size()));
  close(address_fd);
  std::thread engine([&] {
    for (;;) {
      for (decode::ReceiverEvent& event : events.TakeAll(absl::InfiniteFuture())) {
        if (const auto* lost = std::get_if<decode::TransferLost>(&event))
          SLUICE_CHECK(false, "lost: ", lost->why.ToString());
        if (const auto* complete = std::get_if<decode::TransferComplete>(&event))
          receiver.Close(complete->key.reservation, absl::OkStatus());
      }
    }
  });
  char byte;
  (void)!read(end_fd, &byte, 1);
  _exit(0);
}

// --- prefill's process ---

class Prefill {
 public:
  explicit Prefill(const Load& load)
      : load_(load), pool_(MakePool(load)), lease_(*pool_->Lease(pool_->PagesFor(load.tokens))) {
    Fill(*pool_, lease_, load.tokens);
    const PrefillOptions defaults;
    prefill::KvSenderOptions options = {
        .hello = HelloOf("prefill", 1, load),
        .send_memory_bytes = static_cast<size_t>(defaults.send_memory_bytes),
        .connection_bytes_in_flight_max = static_cast<size_t>(defaults.connection_bytes_in_flight_max),
        .frame_bytes_min = static_cast<size_t>(defaults.frame_bytes_min),
        .frame_bytes_max = static_cast<size_t>(defaults.frame_bytes_max),
        .connections_max = defaults.connections_max,
        .connect_timeout = absl::Seconds(20),
        .result_timeout = absl::Seconds(60)};
    auto sender = prefill::KvSender::Create(options, pool_.get(), &clock_, &metrics_);
    SLUICE_CHECK(sender.ok(), "sender: ", sender.status().ToString());
    sender_ = *std::move(sender);
    auto transport = CreateTransport("ucx", {}, sender_->receiver());
    SLUICE_CHECK(transport.ok(), "transport: ", transport.status().ToString());
    transport_ = *std::move(transport);
    sender_->Attach(transport_.get(), [this](prefill::TransferId, const prefill::TransferReport& report) {
      SLUICE_CHECK(report.status.ok(), "transfer: ", report.status.ToString());
      kv_bytes_ += report.kv_bytes;
      left_->DecrementCount();
    });
    thread_ = std::thread([this] { sender_->Serve(); });
  }
  ~Prefill() {
    sender_->Stop();
    thread_.join();
    transport_.reset();
  }

  // Hands requests `first` to `last` over; payload bytes.
  uint64_t HandOver(const std::string& address, int first, int last) {
    absl::BlockingCounter left(last - first + 1);
    left_ = &left;
    kv_bytes_ = 0;
    for (int i = first; i <= last; ++i) Begin(static_cast<uint64_t>(i), address);
    left.Wait();
    return kv_bytes_;
  }

  // Seconds that encoding everything once takes, and checking it, each alone on this thread.
  std::pair<double, double> Costs() {
    std::vector<std::byte> body(BodyBytes(kLayout, load_.wire, 1, kChunkTokens));
    double encode_s = 0, crc_s = 0;
    for (int first = 0; first + kChunkTokens <= load_.tokens; first += kChunkTokens) {
      for (int layer = 0; layer < kLayout.layers; ++layer) {
        const absl::Time start = absl::Now();
        SLUICE_CHECK(EncodeBody(*pool_, lease_.pages(), {.layer = layer, .first_token = first, .tokens = kChunkTokens},
                                load_.wire, absl::MakeSpan(body))
                         .ok());
        const absl::Time encoded = absl::Now();
        volatile uint32_t crc = Crc32c(body.data(), body.size());
        (void)crc;
        crc_s += absl::ToDoubleSeconds(absl::Now() - encoded);
        encode_s += absl::ToDoubleSeconds(encoded - start);
      }
    }
    return {encode_s, crc_s};
  }

 private:
  void Begin(uint64_t id, const std::string& address) {
    proto::Ticket ticket;
    ticket.set_request_id(id);
    ticket.set_reservation_id(id);
    ticket.set_generation(1);
    ticket.set_decode_epoch(kReceiverEpoch);
    ticket.set_kv_address(address);
    sender_->Begin({id}, std::move(ticket), {lease_.pages().begin(), lease_.pages().end()},
                   absl::Now() + absl::Minutes(10));
    for (int first = 0; first < load_.tokens; first += kChunkTokens) {
      const int tokens = std::min(kChunkTokens, load_.tokens - first);
      for (int layer = 0; layer < kLayout.layers; ++layer)
        sender_->Send({id}, {.layer = layer, .first_token = first, .tokens = tokens});
    }
    sender_->Commit({id}, Record(id));
  }
  proto::HandoffRecord Record(uint64_t id) const {
    proto::HandoffRecord record;
    record.set_request_id(id);
    for (int i = 0; i < load_.tokens; ++i) record.add_prompt_ids(i % kVocab);
    SamplingParams sampling;
    sampling.max_tokens = 2;
    *record.mutable_sampling() = ToProto(sampling);
    record.add_choices()->add_generated(1);
    record.set_kv_tokens(static_cast<uint32_t>(load_.tokens));
    record.mutable_usage()->set_prompt_tokens(static_cast<uint32_t>(load_.tokens));
    record.mutable_usage()->set_completion_tokens(1);
    return record;
  }

  const Load load_;
  RealClock clock_;
  prefill::PrefillMetrics metrics_;
  std::unique_ptr<KvPool> pool_;
  PageLease lease_;
  std::unique_ptr<prefill::KvSender> sender_;
  std::unique_ptr<Transport> transport_;
  std::thread thread_;
  absl::BlockingCounter* left_ = nullptr;
  uint64_t kv_bytes_ = 0;
};

int Run(const Load& load) {
  int address_pipe[2], end_pipe[2];
  SLUICE_CHECK(pipe(address_pipe) == 0 && pipe(end_pipe) == 0);
  const pid_t child = fork();
  if (child == 0) {
    close(end_pipe[1]);
    RunDecode(address_pipe[1], end_pipe[0], load);
  }
  close(address_pipe[1]);
  Prefill prefill(load);
  char address[64] = {};
  SLUICE_CHECK(read(address_pipe[0], address, sizeof(address) - 1) > 0);
  prefill.HandOver(address, 1, 1);
  const double cpu_before = CpuSeconds(RUSAGE_SELF);
  const absl::Time start = absl::Now();
  const auto bytes = static_cast<double>(prefill.HandOver(address, 2, load.requests + 1));
  const double elapsed = absl::ToDoubleSeconds(absl::Now() - start);
  const double cpu = CpuSeconds(RUSAGE_SELF) - cpu_before;
  const auto [encode_s, crc_s] = prefill.Costs();
  close(end_pipe[1]);
  waitpid(child, nullptr, 0);
  const auto once = static_cast<double>(Bytes(kLayout, load.wire, load.tokens));
  std::printf(
      "{\"bytes\": %.0f, \"seconds\": %.6f, \"goodput\": %.0f, \"frame_bytes\": %zu, \"sender_cpu_s_per_gb\": %.3f, "
      "\"encode_bytes_per_s\": %.0f, \"crc_bytes_per_s\": %.0f}\n",
      bytes, elapsed, bytes / elapsed, BodyBytes(kLayout, load.wire, 1, kChunkTokens), cpu / bytes * 1e9,
      once / encode_s, once / crc_s);
  return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: transfer_rate TOKENS REQUESTS STORE WIRE\n");
    return 2;
  }
  const auto store = sluice::ParseKvCodec(argv[3]), wire = sluice::ParseKvCodec(argv[4]);
  SLUICE_CHECK(store.ok() && wire.ok(), "codec: ", store.status().ToString(), wire.status().ToString());
  const int tokens = std::atoi(argv[1]), requests = std::atoi(argv[2]);
  SLUICE_CHECK(tokens > 0 && tokens % 16 == 0 && requests > 0, "tokens are a multiple of 16, requests at least one");
  return sluice::Run({tokens, requests, *store, *wire});
}
