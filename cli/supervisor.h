// Starts processes of this very binary on this machine and keeps them running: what `sluice serve` is made of. A child
// announces the ports that it listens on through a pipe; one that dies is started again, on the same ports, after a
// pause that grows while it keeps dying. No child outlives its supervisor. Single-threaded.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/status.h"

namespace sluice {

struct ChildSpec {
  std::string name;               // for messages: "prefill 0"
  std::vector<std::string> args;  // subcommand and flags; "--announce-fd N" and the addresses below are added
  struct Listen {
    std::string flag;     // "--listen"
    std::string key;      // of the announcement: "grpc"
    std::string address;  // "127.0.0.1:0"; a restarted child gets what was announced the first time
  };
  std::vector<Listen> listens;
};

// Where a child listens, by the keys of its announcement: "grpc", "kv", "metrics", "http".
using Announcement = std::map<std::string, std::string>;

class Supervisor {
 public:
  struct Options {
    std::vector<std::string> environment;             // "NAME=value", for the children only
    absl::Duration start_timeout = absl::Minutes(5);  // loading a model takes long
    absl::Duration stop_timeout = absl::Seconds(15);  // then SIGKILL
    absl::Duration restart_pause_min = absl::Milliseconds(500);
    absl::Duration restart_pause_max = absl::Seconds(10);
  };
  explicit Supervisor(Options options);
  ~Supervisor();  // stops what still runs

  // Starts the children of `specs` side by side and waits until each has announced itself. Unavailable names the first
  // that ended or stayed silent; the others are stopped.
  StatusOr<std::vector<Announcement>> Start(const std::vector<ChildSpec>& specs);

  // Restarts children as they die until SIGINT or SIGTERM comes, then stops all and returns.
  void Run();

 private:
  struct Child {
    ChildSpec spec;
    pid_t pid = -1;
    int announce_fd = -1;
    Announcement announced;
    absl::Duration pause;
    absl::Time restart_at = absl::InfiniteFuture();
    absl::Time started_at;
  };

  Status Spawn(Child& child);
  Status AwaitAnnouncement(Child& child, absl::Time deadline);
  void Reap();
  void StopAll();

  Options options_;
  std::vector<Child> children_;
};

}  // namespace sluice
