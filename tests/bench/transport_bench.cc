// Goodput of the UCX transport between two processes of this machine, to be set beside
//   UCX_TLS=tcp UCX_NET_DEVICES=lo ucx_perftest -t ucp_am_bw -s BYTES -n N [127.0.0.1]
// with the same payload. Prints GB/s and how many CPU seconds both ends took for a second of it.
//   transport_bench [payload bytes] [payloads in flight] [seconds] [bytes of a landing's piece; 0: one piece]
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "transport/backends.h"

namespace sluice {

namespace {

// Lands everything in one buffer for each payload in flight, whole or in pieces in reverse order, and lets go of it at
// once.
class Sink final : public Receiver {
 public:
  explicit Sink(size_t piece_bytes) : piece_bytes_(piece_bytes) {}
  StatusOr<std::string> OnHello(ConnectionId, std::string_view) override { return std::string("sink"); }
  StatusOr<Landing> OnMessage(ConnectionId, std::string_view, size_t bytes) override {
    std::vector<std::byte>& memory = memory_[next_++ % memory_.size()];
    if (memory.size() < bytes) memory.resize(bytes);
    Landing landing;
    const size_t piece = piece_bytes_ == 0 ? bytes : piece_bytes_;
    for (size_t at = 0; at < bytes; at += piece)
      landing.memory.push_back(absl::MakeSpan(memory).subspan(at, std::min(piece, bytes - at)));
    std::reverse(landing.memory.begin(), landing.memory.end());
    if (bytes % piece != 0) std::rotate(landing.memory.begin(), landing.memory.begin() + 1, landing.memory.end());
    return landing;
  }
  void OnLanded(ConnectionId, uint64_t, const Status&) override {}
  void OnClosed(ConnectionId, const Status&) override {}

 private:
  std::vector<std::vector<std::byte>> memory_ = std::vector<std::vector<std::byte>>(64);
  size_t next_ = 0;
  const size_t piece_bytes_;
};

double CpuSeconds(int who) {
  rusage usage = {};
  getrusage(who, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

[[noreturn]] void RunSink(int address_fd, int end_fd, size_t piece_bytes) {
  Sink sink(piece_bytes);
  StatusOr<std::unique_ptr<Transport>> transport = CreateTransport("ucx", {.listen_address = "127.0.0.1:0"}, &sink);
  SLUICE_CHECK(transport.ok());
  const std::string address = (*transport)->address();
  SLUICE_CHECK(write(address_fd, address.data(), address.size()) == static_cast<ssize_t>(address.size()));
  close(address_fd);
  char byte;
  (void)!read(end_fd, &byte, 1);
  transport->reset();
  _exit(0);
}

// Keeps `in_flight` payloads under way until `until`.
class Source {
 public:
  Source(Transport* transport, ConnectionId connection, size_t bytes, absl::Time until)
      : transport_(transport), connection_(connection), payload_(bytes, std::byte{1}), until_(until) {}

  void Run(int in_flight) {
    open_ = in_flight;
    for (int i = 0; i < in_flight; ++i) Next();
    ended_.WaitForNotification();
  }
  double bytes() const { return static_cast<double>(sent_) * static_cast<double>(payload_.size()); }

 private:
  void Next() {
    transport_->Send(connection_, "header", payload_, [this](const Status& status) {
      SLUICE_CHECK(status.ok(), "send: ", status.ToString());
      ++sent_;
      if (absl::Now() < until_) return Next();
      if (--open_ == 0) ended_.Notify();
    });
  }

  Transport* const transport_;
  const ConnectionId connection_;
  const std::vector<std::byte> payload_;
  const absl::Time until_;
  std::atomic<int> open_{0};
  std::atomic<uint64_t> sent_{0};
  absl::Notification ended_;
};

int Run(size_t bytes, int in_flight, double seconds, size_t piece_bytes) {
  int address_pipe[2], end_pipe[2];
  SLUICE_CHECK(pipe(address_pipe) == 0 && pipe(end_pipe) == 0);
  const pid_t child = fork();
  if (child == 0) {
    close(end_pipe[1]);
    RunSink(address_pipe[1], end_pipe[0], piece_bytes);
  }
  close(address_pipe[1]);
  char address[64] = {};
  SLUICE_CHECK(read(address_pipe[0], address, sizeof(address) - 1) > 0);
  Sink unused(0);
  StatusOr<std::unique_ptr<Transport>> transport = CreateTransport("ucx", {}, &unused);
  SLUICE_CHECK(transport.ok());
  absl::Notification connected;
  const ConnectionId connection =
      (*transport)->Connect(address, "hello", absl::Seconds(10), [&](const StatusOr<std::string>& reply) {
        SLUICE_CHECK(reply.ok());
        connected.Notify();
      });
  connected.WaitForNotification();
  const double cpu_before = CpuSeconds(RUSAGE_SELF);
  const absl::Time start = absl::Now();
  Source source(transport->get(), connection, bytes, start + absl::Seconds(seconds));
  source.Run(in_flight);
  const double elapsed = absl::ToDoubleSeconds(absl::Now() - start);
  const double own_cpu = CpuSeconds(RUSAGE_SELF) - cpu_before;
  close(end_pipe[1]);
  waitpid(child, nullptr, 0);
  std::printf("payload %zu, %d in flight: %.3f GB/s; CPU of the sender %.2f, of the receiver %.2f\n", bytes, in_flight,
              source.bytes() / elapsed / 1e9, own_cpu / elapsed, CpuSeconds(RUSAGE_CHILDREN) / elapsed);
  return 0;
}

}  // namespace

}  // namespace sluice

int main(int argc, char** argv) {
  return sluice::Run(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1 << 20, argc > 2 ? std::atoi(argv[2]) : 8,
                     argc > 3 ? std::atof(argv[3]) : 2.0, argc > 4 ? std::strtoull(argv[4], nullptr, 10) : 0);
}
