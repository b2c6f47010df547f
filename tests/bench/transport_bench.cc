// Goodput of the UCX transport between two processes of this machine, beside ucx_perftest with the same payload over
// the same transport (TCP on lo), in turn. Each end has a CPU of its own, the same ones for all. Medians over the
// rounds; a share is the median of the rounds' ratios. CPU seconds are of both ends, start included: on a machine that
// does other things too they say more than the rates.
//   transport_bench [rounds] [GB of each measurement] [payload bytes ...]
//
// References: "as it is" is ucx_perftest polling, with UCX's defaults; "our way" is it sleeping when idle, with the
// settings that the transport makes and why is said in transport/README.md (no emulated remote writes; rendezvous).
// Landings: "one" is one buffer for all payloads, as ucx_perftest has it; "pieces" the same in pieces of 4 KiB; "cold"
// is one piece each time somewhere else in 512 MiB, as pages of a KV pool are (its CPU seconds include touching them).
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/buffer.h"
#include "transport/backends.h"

namespace sluice {

namespace {

constexpr int kInFlight = 8;
constexpr size_t kPieceBytes = 4096;
constexpr size_t kColdBytes = size_t{512} << 20;

int64_t WarmUp(int64_t count) { return std::max<int64_t>(kInFlight, count / 10); }

enum class LandIn { kOne, kPieces, kCold };

// On this CPU, whatever else runs; not where there is only one.
void Pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (sysconf(_SC_NPROCESSORS_ONLN) > 1) sched_setaffinity(0, sizeof(set), &set);
}

Buffer Touched(size_t bytes) {
  StatusOr<Buffer> buffer = Buffer::Create(bytes, /*touch=*/true);
  SLUICE_CHECK(buffer.ok());
  return *std::move(buffer);
}

// Lands everything in the same memory and lets go of it at once.
class Sink final : public Receiver {
 public:
  Sink(LandIn land_in, size_t payload_bytes)
      : land_in_(land_in),
        memory_(Touched(land_in == LandIn::kCold ? std::max(kColdBytes, payload_bytes) : payload_bytes)) {}

  StatusOr<std::string> OnHello(ConnectionId, std::string_view) override { return std::string("sink"); }
  StatusOr<Landing> OnMessage(ConnectionId, std::string_view, size_t bytes) override {
    Landing landing;
    const size_t piece = land_in_ == LandIn::kPieces ? kPieceBytes : bytes;
    if (land_in_ == LandIn::kCold) at_ = at_ + 2 * bytes <= memory_.size() ? at_ + bytes : 0;
    // Neighbouring pieces lie apart from each other.
    const size_t pieces = bytes / piece;
    const size_t stride = pieces % 7 == 0 ? 1 : 7;
    for (size_t i = 0; i < pieces; ++i)
      landing.memory.push_back(memory_.span().subspan(at_ + i * stride % pieces * piece, piece));
    return landing;
  }
  void OnLanded(ConnectionId, uint64_t, const Status&) override {}
  void OnClosed(ConnectionId, const Status&) override {}

 private:
  const LandIn land_in_;
  Buffer memory_;
  size_t at_ = 0;
};

[[noreturn]] void RunSink(int address_fd, int end_fd, LandIn land_in, size_t payload_bytes) {
  Pin(1);
  Sink sink(land_in, payload_bytes);
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

// Keeps payloads under way until so many have gone.
class Source {
 public:
  Source(Transport* transport, ConnectionId connection, absl::Span<const std::byte> payload, int64_t count)
      : transport_(transport), connection_(connection), payload_(payload), left_(count), open_(count) {}

  void Run() {
    for (int i = 0; i < kInFlight; ++i) Next();
    ended_.WaitForNotification();
  }

 private:
  void Next() {
    if (left_.fetch_sub(1) <= 0) return;
    transport_->Send(connection_, "header", payload_, [this](const Status& status) {
      SLUICE_CHECK(status.ok(), "send: ", status.ToString());
      Next();
      if (--open_ == 0) ended_.Notify();
    });
  }

  Transport* const transport_;
  const ConnectionId connection_;
  const absl::Span<const std::byte> payload_;
  std::atomic<int64_t> left_;
  std::atomic<int64_t> open_;
  absl::Notification ended_;
};

// GB/s.
double RunSource(const std::string& address, size_t bytes, int64_t count) {
  Pin(0);
  Sink unused(LandIn::kOne, 1);
  StatusOr<std::unique_ptr<Transport>> transport = CreateTransport("ucx", {}, &unused);
  SLUICE_CHECK(transport.ok());
  absl::Notification connected;
  const ConnectionId connection =
      (*transport)->Connect(address, "hello", absl::Seconds(10), [&](const StatusOr<std::string>& reply) {
        SLUICE_CHECK(reply.ok());
        connected.Notify();
      });
  connected.WaitForNotification();
  Buffer payload = Touched(bytes);
  Source(transport->get(), connection, payload.span(), WarmUp(count)).Run();
  const absl::Time start = absl::Now();
  Source(transport->get(), connection, payload.span(), count).Run();
  return static_cast<double>(bytes) * static_cast<double>(count) / absl::ToDoubleSeconds(absl::Now() - start) / 1e9;
}

struct Rate {
  double gb_per_s = 0;
  double cpu_s_per_gb = 0;
};

double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_CHILDREN, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

double GigaBytes(size_t bytes, int64_t count) {
  return static_cast<double>(bytes) * static_cast<double>(count + WarmUp(count)) / 1e9;
}

// Two processes of their own, so that UCX starts anew each time.
Rate MeasureOurs(LandIn land_in, size_t bytes, int64_t count) {
  int address_pipe[2], end_pipe[2], result_pipe[2];
  SLUICE_CHECK(pipe(address_pipe) == 0 && pipe(end_pipe) == 0 && pipe(result_pipe) == 0);
  const double cpu_before = CpuSeconds();
  const pid_t sink = fork();
  if (sink == 0) {
    close(end_pipe[1]);
    RunSink(address_pipe[1], end_pipe[0], land_in, bytes);
  }
  const pid_t source = fork();
  if (source == 0) {
    close(address_pipe[1]);
    char address[64] = {};
    SLUICE_CHECK(read(address_pipe[0], address, sizeof(address) - 1) > 0);
    const double rate = RunSource(address, bytes, count);
    SLUICE_CHECK(write(result_pipe[1], &rate, sizeof(rate)) == sizeof(rate));
    _exit(0);
  }
  close(address_pipe[1]);
  Rate rate;
  SLUICE_CHECK(read(result_pipe[0], &rate.gb_per_s, sizeof(double)) == sizeof(double));
  waitpid(source, nullptr, 0);
  for (int fd : {address_pipe[0], end_pipe[0], end_pipe[1], result_pipe[0], result_pipe[1]}) close(fd);
  waitpid(sink, nullptr, 0);
  rate.cpu_s_per_gb = (CpuSeconds() - cpu_before) / GigaBytes(bytes, count);
  return rate;
}

std::string ReadAll(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  std::string text;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) text.append(buffer, n);
  pclose(pipe);
  return text;
}

struct Reference {
  const char* environment;
  const char* flags;
};
constexpr Reference kReferences[] = {
    {"", ""}, {"UCX_TCP_PUT_ENABLE=n UCX_RNDV_THRESH=4096 UCX_TCP_RX_SEG_SIZE=256K", "-E sleep"}};

// Its overall bandwidth; nothing where it cannot be run.
std::optional<Rate> MeasurePerftest(const Reference& reference, size_t bytes, int64_t count) {
  static int port = 20'000 + getpid() % 20'000;
  ++port;
  const double cpu_before = CpuSeconds();
  const std::string program = absl::StrCat("UCX_TLS=tcp UCX_NET_DEVICES=lo ", reference.environment,
                                           " ucx_perftest -p ", port, " ", reference.flags, " ");
  const std::string output = ReadAll(
      absl::StrCat(program, "-c 1 >/dev/null 2>&1 & sleep 0.3; ", program, "127.0.0.1 -c 0 -f -t ucp_am_bw -O ",
                   kInFlight, " -s ", bytes, " -w ", WarmUp(count), " -n ", count, " 2>/dev/null | tail -1; wait"));
  double done = 0, percentile = 0, latency = 0, latency_all = 0, rate = 0, rate_all = 0;
  if (std::sscanf(output.c_str(), "%lf %lf %lf %lf %lf %lf", &done, &percentile, &latency, &latency_all, &rate,
                  &rate_all) != 6)
    return std::nullopt;
  // It counts in MiB.
  return Rate{rate_all * (1 << 20) / 1e9, (CpuSeconds() - cpu_before) / GigaBytes(bytes, count)};
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

struct Column {
  std::vector<double> rate, cpu, share, share_our_way;
};

void Compare(size_t bytes, int rounds, double gigabytes) {
  const auto count = static_cast<int64_t>(gigabytes * 1e9 / static_cast<double>(bytes));
  constexpr LandIn kLandIns[] = {LandIn::kOne, LandIn::kPieces, LandIn::kCold};
  Column references[2], ours[3];
  for (int round = 0; round < rounds; ++round) {
    double reference[2] = {};
    for (size_t i = 0; i < 2; ++i) {
      const std::optional<Rate> rate = MeasurePerftest(kReferences[i], bytes, count);
      if (!rate) continue;
      references[i].rate.push_back(reference[i] = rate->gb_per_s);
      references[i].cpu.push_back(rate->cpu_s_per_gb);
    }
    for (size_t i = 0; i < 3; ++i) {
      const Rate rate = MeasureOurs(kLandIns[i], bytes, count);
      ours[i].rate.push_back(rate.gb_per_s);
      ours[i].cpu.push_back(rate.cpu_s_per_gb);
      if (reference[0] > 0) ours[i].share.push_back(rate.gb_per_s / reference[0]);
      if (reference[1] > 0) ours[i].share_our_way.push_back(rate.gb_per_s / reference[1]);
    }
  }
  std::printf("| %5zu ", bytes / 1024);
  for (const Column& c : references) std::printf("| %5.2f (%4.2f) ", Median(c.rate), Median(c.cpu));
  for (const Column& c : ours)
    std::printf("| %5.2f (%4.2f) %5.2f %5.2f ", Median(c.rate), Median(c.cpu), Median(c.share),
                Median(c.share_our_way));
  std::printf("|\n");
  std::fflush(stdout);
}

}  // namespace

}  // namespace sluice

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 7;
  const double gigabytes = argc > 2 ? std::atof(argv[2]) : 1.0;
  std::vector<size_t> sizes;
  for (int i = 3; i < argc; ++i) sizes.push_back(std::strtoull(argv[i], nullptr, 10));
  for (const size_t bytes : sizes)
    SLUICE_CHECK(bytes > 0 && bytes % sluice::kPieceBytes == 0, "payloads are multiples of 4096 bytes, not ", bytes);
  if (sizes.empty()) sizes = {64 << 10, 256 << 10, 1 << 20, 4 << 20, 8 << 20};
  std::printf(
      "GB/s (CPU seconds a GB); ours also as shares of ucx_perftest as it is and our way. %d rounds of %.1f GB\n",
      rounds, gigabytes);
  std::printf(
      "|   KiB | as it is     | our way      | one                      | pieces                   | cold              "
      "       |\n");
  for (const size_t bytes : sizes) sluice::Compare(bytes, rounds, gigabytes);
  return 0;
}
