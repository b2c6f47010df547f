#include "cli/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "spdlog/spdlog.h"

namespace sluice {

namespace {

constexpr size_t kAnnouncementBytesMax = 4096;

// SIGINT, SIGTERM and SIGCHLD are taken with sigtimedwait, never by a handler.
sigset_t WatchedSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGCHLD);
  return set;
}

// SIGINT or SIGTERM has come and waits to be taken.
bool ShouldStop() {
  sigset_t pending;
  sigpending(&pending);
  return sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1;
}

std::string Describe(int wait_status) {
  if (WIFEXITED(wait_status)) return absl::StrCat("exit status ", WEXITSTATUS(wait_status));
  return absl::StrCat("signal ", WTERMSIG(wait_status), " (", strsignal(WTERMSIG(wait_status)), ")");
}

// Between fork and exec: only calls that are safe there.
[[noreturn]] void BecomeChild(char* const* argv, char* const* envp) {
  setpgid(0, 0);  // a terminal's Ctrl-C reaches the supervisor alone, which stops its children in order
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve("/proc/self/exe", argv, envp);
  _exit(127);
}

StatusOr<Announcement> ParseAnnouncement(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InternalError(absl::StrCat("announcement is not a JSON object: ", line));
  Announcement result;
  for (const auto& [key, value] : json.items()) {
    if (value.is_string()) result[key] = value.get<std::string>();
  }
  return result;
}

}  // namespace

Supervisor::Supervisor(Options options) : options_(std::move(options)) {
  const sigset_t set = WatchedSignals();
  sigprocmask(SIG_BLOCK, &set, nullptr);
}

Supervisor::~Supervisor() { StopAll(); }

Status Supervisor::Spawn(Child& child) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return absl::ResourceExhaustedError(absl::StrCat("pipe: ", std::strerror(errno)));
  std::vector<std::string> words = {"sluice"};
  words.insert(words.end(), child.spec.args.begin(), child.spec.args.end());
  for (const ChildSpec::Listen& listen : child.spec.listens) {
    const auto known = child.announced.find(listen.key);
    words.push_back(listen.flag);
    words.push_back(known == child.announced.end() ? listen.address : known->second);
  }
  words.push_back("--announce-fd");
  words.push_back(absl::StrCat(fds[1]));

  std::vector<char*> argv, envp;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  // Of two of one name the first is read.
  for (std::string& variable : options_.environment) envp.push_back(variable.data());
  for (char** variable = environ; *variable != nullptr; ++variable) envp.push_back(*variable);
  envp.push_back(nullptr);

  const pid_t pid = fork();
  if (pid == 0) {
    fcntl(fds[1], F_SETFD, 0);
    BecomeChild(argv.data(), envp.data());
  }
  close(fds[1]);
  if (pid < 0) {
    close(fds[0]);
    return absl::ResourceExhaustedError(absl::StrCat("fork: ", std::strerror(errno)));
  }
  if (child.announce_fd >= 0) close(child.announce_fd);
  child.pid = pid;
  child.announce_fd = fds[0];
  child.started_at = absl::Now();
  child.restart_at = absl::InfiniteFuture();
  return absl::OkStatus();
}

Status Supervisor::AwaitAnnouncement(Child& child, absl::Time deadline) {
  std::string line;
  while (line.find('\n') == std::string::npos) {
    if (ShouldStop()) return absl::CancelledError("stopped by a signal while starting");
    const int64_t left_ms = absl::ToInt64Milliseconds(deadline - absl::Now());
    if (left_ms <= 0) {
      return absl::UnavailableError(absl::StrCat(child.spec.name, " did not say that it listens within ",
                                                 absl::FormatDuration(options_.start_timeout)));
    }
    pollfd watched = {child.announce_fd, POLLIN, 0};
    if (poll(&watched, 1, static_cast<int>(std::min<int64_t>(left_ms, 100))) <= 0) continue;
    char bytes[512];
    const ssize_t n = read(child.announce_fd, bytes, sizeof(bytes));
    if (n <= 0 || line.size() > kAnnouncementBytesMax) {
      return absl::UnavailableError(absl::StrCat(child.spec.name, " ended while starting; its messages are above"));
    }
    line.append(bytes, static_cast<size_t>(n));
  }
  close(child.announce_fd);
  child.announce_fd = -1;
  SLUICE_ASSIGN_OR_RETURN(child.announced, ParseAnnouncement(line));
  return absl::OkStatus();
}

StatusOr<std::vector<Announcement>> Supervisor::Start(const std::vector<ChildSpec>& specs) {
  const size_t first = children_.size();
  for (const ChildSpec& spec : specs) {
    children_.push_back(Child{.spec = spec, .pause = options_.restart_pause_min});
    SLUICE_RETURN_IF_ERROR(Spawn(children_.back()));
  }
  const absl::Time deadline = absl::Now() + options_.start_timeout;
  std::vector<Announcement> announcements;
  for (size_t i = first; i < children_.size(); ++i) {
    SLUICE_RETURN_IF_ERROR(AwaitAnnouncement(children_[i], deadline));
    announcements.push_back(children_[i].announced);
  }
  return announcements;
}

void Supervisor::Reap() {
  int wait_status;
  for (pid_t pid; (pid = waitpid(-1, &wait_status, WNOHANG)) > 0;) {
    for (Child& child : children_) {
      if (child.pid != pid) continue;
      child.pid = -1;
      // One that lived for a while starts over with the shortest pause.
      const bool lived = absl::Now() - child.started_at > absl::Minutes(1);
      if (lived) child.pause = options_.restart_pause_min;
      child.restart_at = absl::Now() + child.pause;
      spdlog::warn("{} (pid {}) ended with {}; starting it again in {}", child.spec.name, pid, Describe(wait_status),
                   absl::FormatDuration(child.pause));
      child.pause = std::min(child.pause * 2, options_.restart_pause_max);
    }
  }
}

void Supervisor::Run() {
  const sigset_t set = WatchedSignals();
  for (;;) {
    absl::Time next = absl::Now() + absl::Hours(1);
    for (Child& child : children_) {
      if (child.restart_at <= absl::Now()) {
        const Status spawned = Spawn(child);
        // Its ports are known: what a restarted child announces stays unread in its pipe.
        if (!spawned.ok()) {
          spdlog::error("{}: {}", child.spec.name, spawned.ToString());
          child.restart_at = absl::Now() + child.pause;
        }
      }
      next = std::min(next, child.restart_at);
    }
    timespec wait = absl::ToTimespec(std::max(next - absl::Now(), absl::Milliseconds(10)));
    const int signal = sigtimedwait(&set, nullptr, &wait);
    if (signal == SIGINT || signal == SIGTERM) {
      spdlog::info("stopping on {}", strsignal(signal));
      return StopAll();
    }
    Reap();
  }
}

// The last started stop first: the gateway finishes what it has while its workers still answer.
void Supervisor::StopAll() {
  for (auto child = children_.rbegin(); child != children_.rend(); ++child) {
    if (child->announce_fd >= 0) close(child->announce_fd);
    if (child->pid < 0) continue;
    kill(child->pid, SIGTERM);
    const absl::Time deadline = absl::Now() + options_.stop_timeout;
    int wait_status;
    while (waitpid(child->pid, &wait_status, WNOHANG) == 0) {
      if (absl::Now() > deadline) {
        spdlog::warn("{} did not stop within {}: killed", child->spec.name,
                     absl::FormatDuration(options_.stop_timeout));
        kill(child->pid, SIGKILL);
        waitpid(child->pid, &wait_status, 0);
        break;
      }
      absl::SleepFor(absl::Milliseconds(10));
    }
    child->pid = -1;
  }
  children_.clear();
}

}  // namespace sluice
