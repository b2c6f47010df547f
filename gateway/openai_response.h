// Bodies that go back to OpenAI clients: whole answers, stream chunks, errors, the model list. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/proto/handoff.pb.h"
#include "common/proto/worker.pb.h"
#include "common/status.h"
#include "gateway/openai_request.h"
#include "model/text/tokenizer.h"

namespace sluice {

// What every body of one answer repeats.
struct AnswerHead {
  OpenAiApi api = OpenAiApi::kCompletions;
  uint64_t request_id = 0;
  int64_t created_unix_s = 0;
  std::string model;
  bool logprobs = false;
  bool include_usage = false;
  bool return_token_ids = false;
  const Tokenizer* tokenizer = nullptr;  // spells the tokens of logprobs; null: models without one

  std::string id() const;  // "chatcmpl-..." or "cmpl-..."
};

struct AnswerTimings {
  double queued_ms = 0;  // in prefill's queue
  double prefill_ms = 0;
  double transfer_ms = 0;
  double first_token_ms = 0;  // from the request's arrival, seen by the gateway
  double total_ms = 0;
  int64_t kv_tokens_sent = 0;     // of the prompt, from prefill to decode
  int64_t kv_tokens_skipped = 0;  // that the cache policy did not want
  int64_t kv_bytes_wire = 0;
};

// One choice, collected from the events of its stream.
struct AnswerChoice {
  std::vector<proto::GeneratedToken> tokens;
  proto::FinishReason finish = proto::FINISH_NONE;
};

// The whole body of an answer that was not streamed.
std::string AnswerBody(const AnswerHead& head, const std::vector<AnswerChoice>& choices, const proto::Usage& usage,
                       const std::vector<TokenId>& prompt_ids, const AnswerTimings* timings);

// Data of server-sent events, each one JSON object. A stream is: Opening() (chats: the role of every choice),
// Chunks() of each event, Closing() where usage or timings were asked for, and kStreamEnd.
class ChunkWriter {
 public:
  ChunkWriter(AnswerHead head, int choices);

  std::vector<std::string> Opening() const;
  std::vector<std::string> Chunks(const proto::GenerateEvent& event);
  std::vector<std::string> Closing(const proto::Usage& usage, const AnswerTimings* timings) const;

 private:
  AnswerHead head_;
  std::vector<int64_t> characters_;  // of each choice so far, for text_offset
};
inline constexpr std::string_view kStreamEnd = "[DONE]";

// {"error": {...}}: message from the status, type and code as OpenAI names them for `http_status`.
std::string ErrorBody(int http_status, const Status& status);

std::string ModelListBody(std::string_view model, int64_t created_unix_s, int64_t context_tokens_max);

}  // namespace sluice
