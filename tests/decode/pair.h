// A prefill and a decode process as a test drives them: real processes (this program, started again), real gRPC and
// real UCX over loopback, and the gateway's part played by hand.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/proto/worker.grpc.pb.h"
#include "common/sampling_params.h"
#include "common/status.h"

namespace sluice::decode {

// The cluster key of every process that a test starts.
inline constexpr char kPairKey[] = "a key that only this test's processes know";

// What a started process is told; the rest is fixed.
struct WorkerSpec {
  std::string role;  // "prefill" or "decode"
  std::string model;
  int page_tokens = 16;
  std::string kv_store = "bf16";
  std::string kv_wire = "bf16";  // prefill's; decode takes every one
  std::string send = "layer";    // likewise
};
std::vector<std::string> ToArguments(const WorkerSpec& spec, int announce_fd);
// The program started again: runs the worker that ToArguments described, and returns its exit status.
int RunWorkerMain(int argc, char** argv);

// A child process. Killed in the destructor, where it has not ended.
class WorkerProcess {
 public:
  // Returns when it has announced itself.
  explicit WorkerProcess(const WorkerSpec& spec);
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  const std::string& address(const std::string& name) const { return addresses_.at(name); }
  void Signal(int signal) const;
  // Its exit status; or minus the signal that ended it.
  int Wait();

 private:
  pid_t pid_ = -1;
  std::map<std::string, std::string> addresses_;
};

// What its metrics port says.
std::string MetricsText(const WorkerProcess& process);

struct Answer {
  std::vector<std::vector<TokenId>> tokens;  // by choice
  std::vector<proto::FinishReason> finish;
  proto::Usage usage;
};

// A reservation as the gateway keeps it.
struct Reserved {
  uint64_t request_id = 0;
  int choices = 1;
  proto::ReserveReply reply;
};

class DecodeClient {
 public:
  explicit DecodeClient(const std::string& address);

  StatusOr<Reserved> Reserve(int64_t prompt_tokens, const SamplingParams& sampling);
  StatusOr<Reserved> Rearm(const Reserved& reserved);
  Status Release(const Reserved& reserved);
  proto::WorkerStatus GetStatus();
  // Waits until every page is free; false if that takes more than ten seconds.
  bool AllPagesComeBack();

  // An open Generate call.
  class Stream {
   public:
    Stream(proto::Decode::Stub* stub, const Reserved& reserved);
    // Reads one event into the answer; false at the end.
    bool Read();
    // The answer, or why there is none.
    StatusOr<Answer> ReadToEnd();
    const Answer& answer() const { return answer_; }
    void Cancel() { context_.TryCancel(); }

   private:
    grpc::ClientContext context_;
    std::unique_ptr<grpc::ClientReader<proto::GenerateEvent>> reader_;
    Answer answer_;
  };
  std::unique_ptr<Stream> Generate(const Reserved& reserved);

 private:
  std::unique_ptr<proto::Decode::Stub> stub_;
};

class PrefillClient {
 public:
  explicit PrefillClient(const std::string& address);
  StatusOr<proto::PrefillReply> Run(const Reserved& reserved, const std::vector<TokenId>& prompt,
                                    const SamplingParams& sampling);

 private:
  std::unique_ptr<proto::Prefill::Stub> stub_;
};

// A whole request through both, as the gateway does it.
StatusOr<Answer> Ask(DecodeClient& decode, PrefillClient& prefill, const std::vector<TokenId>& prompt,
                     const SamplingParams& sampling);

// What a prompt's KV is kept and sent as.
struct KvPath {
  std::string prefill_store = "bf16";
  std::string wire = "bf16";
  std::string decode_store = "bf16";
};

// The same request computed in this process, with the prompt's KV recoded as on its way.
Answer AnswerWhole(const std::string& model, const std::vector<TokenId>& prompt, const SamplingParams& sampling,
                   const KvPath& path = {});

}  // namespace sluice::decode
