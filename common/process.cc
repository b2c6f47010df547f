#include "common/process.h"

#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <random>

namespace sluice {

namespace {

// The fields are addresses and names, but a path or a host is the operator's own text.
std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppend(&out, "\\u", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad4));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace

Epoch NewEpoch() {
  std::random_device random;
  Epoch epoch;
  while (epoch.value == 0) epoch.value = static_cast<uint64_t>(random()) << 32 | random();
  return epoch;
}

Status Announce(int fd, const std::vector<std::pair<std::string, std::string>>& fields) {
  if (fd < 0) return absl::OkStatus();
  std::string line = "{";
  for (const auto& [name, value] : fields) absl::StrAppend(&line, Quoted(name), ": ", Quoted(value), ", ");
  absl::StrAppend(&line, "\"pid\": ", getpid(), "}\n");
  size_t written = 0;
  while (written < line.size()) {
    const ssize_t n = write(fd, line.data() + written, line.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    written += static_cast<size_t>(n);
  }
  // A number that is given back may become a socket's, and what is printed later would be written into it.
  if (fd > STDERR_FILENO) close(fd);
  if (written < line.size()) return absl::UnavailableError(absl::StrCat("nobody reads the announcement on fd ", fd));
  return absl::OkStatus();
}

struct TerminationSignals::State {
  sigset_t signals;
  sigset_t former_mask;
};

TerminationSignals::TerminationSignals() : state_(new State) {
  sigemptyset(&state_->signals);
  sigaddset(&state_->signals, SIGTERM);
  sigaddset(&state_->signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &state_->signals, &state_->former_mask);
}

TerminationSignals::~TerminationSignals() {
  pthread_sigmask(SIG_SETMASK, &state_->former_mask, nullptr);
  delete state_;
}

int TerminationSignals::Wait() {
  int signal = 0;
  while (sigwait(&state_->signals, &signal) != 0) {
  }
  return signal;
}

}  // namespace sluice
