#include "tests/decode/pair.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/proto/convert.h"
#include "decode/process.h"
#include "grpcpp/grpcpp.h"
#include "model/checkpoint/checkpoint.h"
#include "model/generation.h"
#include "model/kv_body.h"
#include "model/kv_pool.h"
#include "model/text/tokenizer.h"
#include "model/transformer.h"
#include "nlohmann/json.hpp"
#include "prefill/process.h"
#include "transport/socket.h"

namespace sluice::decode {

namespace {
constexpr absl::Duration kCallTimeout = absl::Seconds(60);

Status FromGrpc(const grpc::Status& status) {
  return Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

// What both processes and the whole model have in common.
template <typename Options>
void SetCommon(Options& options, char** arguments) {
  options.model_path = arguments[0];
  options.page_tokens = std::stoi(arguments[1]);
  options.kv_store = arguments[2];
  options.announce_fd = std::stoi(arguments[5]);
  options.kv_memory_bytes = int64_t{64} << 20;
  options.cluster_key = kPairKey;
}
}  // namespace

std::vector<std::string> ToArguments(const WorkerSpec& spec, int announce_fd) {
  return {"--worker",    spec.role,    spec.model, std::to_string(spec.page_tokens),
          spec.kv_store, spec.kv_wire, spec.send,  std::to_string(announce_fd)};
}

int RunWorkerMain(int argc, char** argv) {
  SLUICE_CHECK(argc == 9);
  // A test that dies leaves no processes behind.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Status status;
  if (std::string(argv[2]) == "decode") {
    DecodeOptions options;
    SetCommon(options, argv + 3);
    status = RunDecode(options);
  } else {
    PrefillOptions options;
    SetCommon(options, argv + 3);
    options.kv_wire = argv[6];
    options.send = argv[7];
    options.batch_tokens_max = 64;
    status = RunPrefill(options);
  }
  if (!status.ok()) fprintf(stderr, "%s: %s\n", argv[2], status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

WorkerProcess::WorkerProcess(const WorkerSpec& spec) {
  int announce[2];
  SLUICE_CHECK(pipe(announce) == 0);
  std::vector<std::string> arguments = ToArguments(spec, announce[1]);
  arguments.insert(arguments.begin(), "/proc/self/exe");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_ = fork();
  SLUICE_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    close(announce[0]);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(announce[1]);
  std::string line;
  char buffer[512];
  for (ssize_t n = 0; (n = read(announce[0], buffer, sizeof(buffer))) > 0;) line.append(buffer, static_cast<size_t>(n));
  close(announce[0]);
  SLUICE_CHECK(!line.empty(), "a worker ended before it served");
  const auto announced = nlohmann::json::parse(line);
  for (const auto& [name, value] : announced.items()) {
    if (value.is_string()) addresses_[name] = value.get<std::string>();
  }
}

std::string MetricsText(const WorkerProcess& process) {
  const StatusOr<SocketAddress> port = SocketAddress::Parse(process.address("metrics"), false);
  SLUICE_CHECK(port.ok());
  const UniqueFd fd(socket(port->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SLUICE_CHECK(connect(fd.get(), reinterpret_cast<const sockaddr*>(&port->storage), port->bytes) == 0);
  constexpr std::string_view kRequest = "GET /metrics HTTP/1.0\r\n\r\n";
  SLUICE_CHECK(write(fd.get(), kRequest.data(), kRequest.size()) == static_cast<ssize_t>(kRequest.size()));
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(fd.get(), buffer, sizeof(buffer))) > 0;) text.append(buffer, static_cast<size_t>(n));
  return text;
}

WorkerProcess::~WorkerProcess() {
  if (pid_ < 0) return;
  Signal(SIGKILL);
  Wait();
}

void WorkerProcess::Signal(int signal) const { SLUICE_CHECK(pid_ > 0 && kill(pid_, signal) == 0); }

int WorkerProcess::Wait() {
  int status = 0;
  SLUICE_CHECK(waitpid(std::exchange(pid_, -1), &status, 0) > 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

DecodeClient::DecodeClient(const std::string& address)
    : stub_(proto::Decode::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))) {}

StatusOr<Reserved> DecodeClient::Reserve(int64_t prompt_tokens, const SamplingParams& sampling) {
  static std::atomic<uint64_t> requests{0};
  proto::ReserveRequest request;
  request.set_request_id(++requests);
  request.set_prompt_tokens(static_cast<uint32_t>(prompt_tokens));
  *request.mutable_sampling() = ToProto(sampling);
  request.set_deadline_unix_ms(absl::ToUnixMillis(absl::Now() + kCallTimeout));
  proto::ReserveReply reply;
  grpc::ClientContext context;
  SLUICE_RETURN_IF_ERROR(FromGrpc(stub_->Reserve(&context, request, &reply)));
  if (reply.has_no_room()) return absl::ResourceExhaustedError(reply.no_room().ShortDebugString());
  return Reserved{request.request_id(), sampling.n, reply};
}

StatusOr<Reserved> DecodeClient::Rearm(const Reserved& reserved) {
  proto::RearmRequest request;
  request.set_reservation_id(reserved.reply.reservation_id());
  request.set_epoch(reserved.reply.epoch());
  proto::ReserveReply reply;
  grpc::ClientContext context;
  SLUICE_RETURN_IF_ERROR(FromGrpc(stub_->Rearm(&context, request, &reply)));
  return Reserved{reserved.request_id, reserved.choices, reply};
}

Status DecodeClient::Release(const Reserved& reserved) {
  proto::ReleaseRequest request;
  request.set_reservation_id(reserved.reply.reservation_id());
  request.set_epoch(reserved.reply.epoch());
  proto::ReleaseReply reply;
  grpc::ClientContext context;
  return FromGrpc(stub_->Release(&context, request, &reply));
}

proto::WorkerStatus DecodeClient::GetStatus() {
  proto::WorkerStatus status;
  grpc::ClientContext context;
  SLUICE_CHECK(stub_->GetStatus(&context, {}, &status).ok());
  return status;
}

bool DecodeClient::AllPagesComeBack() {
  for (const absl::Time give_up = absl::Now() + absl::Seconds(10); absl::Now() < give_up;) {
    const proto::WorkerStatus status = GetStatus();
    if (status.kv_pages_free() + status.kv_pages_cached() == status.kv_pages_total()) return true;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return false;
}

std::unique_ptr<DecodeClient::Stream> DecodeClient::Generate(const Reserved& reserved) {
  return std::make_unique<Stream>(stub_.get(), reserved);
}

DecodeClient::Stream::Stream(proto::Decode::Stub* stub, const Reserved& reserved) {
  answer_.tokens.resize(static_cast<size_t>(reserved.choices));
  answer_.finish.resize(static_cast<size_t>(reserved.choices));
  proto::GenerateRequest request;
  request.set_reservation_id(reserved.reply.reservation_id());
  request.set_epoch(reserved.reply.epoch());
  reader_ = stub->Generate(&context_, request);
}

bool DecodeClient::Stream::Read() {
  proto::GenerateEvent event;
  if (!reader_->Read(&event)) return false;
  for (const auto& token : event.tokens()) answer_.tokens.at(event.choice()).push_back(token.token());
  answer_.finish.at(event.choice()) = event.finish();
  if (event.last()) answer_.usage = event.usage();
  return true;
}

StatusOr<Answer> DecodeClient::Stream::ReadToEnd() {
  while (Read()) {
  }
  SLUICE_RETURN_IF_ERROR(FromGrpc(reader_->Finish()));
  return answer_;
}

PrefillClient::PrefillClient(const std::string& address)
    : stub_(proto::Prefill::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))) {}

StatusOr<proto::PrefillReply> PrefillClient::Run(const Reserved& reserved, const std::vector<TokenId>& prompt,
                                                 const SamplingParams& sampling) {
  proto::PrefillRequest request;
  request.set_request_id(reserved.request_id);
  *request.mutable_prompt_ids() = {prompt.begin(), prompt.end()};
  *request.mutable_sampling() = ToProto(sampling);
  request.set_ticket(reserved.reply.ticket());
  request.set_deadline_unix_ms(absl::ToUnixMillis(absl::Now() + kCallTimeout));
  proto::PrefillReply reply;
  grpc::ClientContext context;
  SLUICE_RETURN_IF_ERROR(FromGrpc(stub_->Run(&context, request, &reply)));
  return reply;
}

StatusOr<Answer> Ask(DecodeClient& decode, PrefillClient& prefill, const std::vector<TokenId>& prompt,
                     const SamplingParams& sampling) {
  SLUICE_ASSIGN_OR_RETURN(const Reserved reserved, decode.Reserve(static_cast<int64_t>(prompt.size()), sampling));
  const auto stream = decode.Generate(reserved);
  const auto ran = prefill.Run(reserved, prompt, sampling);
  if (!ran.ok()) return WithContext(ran.status(), "prefill");
  return stream->ReadToEnd();
}

namespace {

std::unique_ptr<KvPool> PoolOf(const KvLayout& layout, const std::string& codec) {
  auto pool = KvPool::Create({.layout = layout, .codec = *ParseKvCodec(codec), .pages = 64});
  SLUICE_CHECK(pool.ok());
  return *std::move(pool);
}

// The first `tokens` tokens, from the one pool to the other as in a handoff.
void Carry(const KvPool& from, const PageLease& from_pages, KvPool& to, const PageLease& to_pages, KvCodec wire,
           int64_t tokens) {
  const KvLayout& layout = from.options().layout;
  const KvRange all = {.layers = layout.layers, .tokens = tokens};
  std::vector<std::byte> body(BodyBytes(layout, wire, layout.layers, tokens));
  SLUICE_CHECK(EncodeBody(from, from_pages.pages(), all, wire, absl::MakeSpan(body)).ok());
  SLUICE_CHECK(DecodeBody(to, to_pages.pages(), all, wire, body).ok());
}

}  // namespace

Answer AnswerWhole(const std::string& model, const std::vector<TokenId>& prompt, const SamplingParams& sampling,
                   const KvPath& path) {
  const auto checkpoint = OpenCheckpoint(model);
  SLUICE_CHECK(checkpoint.ok());
  const auto transformer =
      Transformer::Create(checkpoint->get(), {.threads = 1, .batch_tokens_max = 512, .logit_rows_max = 1});
  SLUICE_CHECK(transformer.ok());
  const KvLayout layout = KvLayout::Of((*checkpoint)->config());
  const auto prefill = PoolOf(layout, path.prefill_store);
  const auto decode = PoolOf(layout, path.decode_store);
  const auto prompt_tokens = static_cast<int64_t>(prompt.size());
  const auto tokenizer = Tokenizer::Create((*checkpoint)->tokenizer());
  const GenerationContext context = {.tokenizer = tokenizer.ok() ? tokenizer->get() : nullptr,
                                     .sampling = sampling,
                                     .prompt_ids = prompt,
                                     .eos_ids = (*checkpoint)->config().eos_ids,
                                     .vocab_size = (*checkpoint)->config().vocab_size,
                                     .positions_max = (*checkpoint)->config().context_tokens_max};
  Answer answer;
  for (int choice = 0; choice < sampling.n; ++choice) {
    const auto from = prefill->Lease(prefill->PagesFor(prompt_tokens));
    const auto to = decode->Lease(decode->PagesFor(prompt_tokens + sampling.max_tokens));
    SLUICE_CHECK(from.ok() && to.ok());
    Generation generation(&context, choice);
    auto logits = (*transformer)->Forward({{{prompt, 0, from->pages(), LogitsFor::kLast}}}, *prefill);
    Carry(*prefill, *from, *decode, *to, *ParseKvCodec(path.wire), prompt_tokens);
    for (int64_t position = prompt_tokens;; ++position) {
      SLUICE_CHECK(logits.ok());
      const std::vector<TokenId> step = {generation.Step(*logits)->token()};
      if (generation.finished()) break;
      logits =
          (*transformer)->Forward({{{step, position, to->pages(), LogitsFor::kLast, /*generated=*/true}}}, *decode);
    }
    answer.tokens.emplace_back(generation.generated().begin(), generation.generated().end());
    answer.finish.push_back(generation.finish());
    answer.usage.set_completion_tokens(answer.usage.completion_tokens() +
                                       static_cast<uint32_t>(generation.generated().size()));
  }
  answer.usage.set_prompt_tokens(static_cast<uint32_t>(prompt.size()));
  return answer;
}

}  // namespace sluice::decode
