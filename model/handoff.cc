#include "model/handoff.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_join.h"
#include "common/proto/convert.h"
#include "common/sampling_params.h"
#include "model/kv_frame.h"

namespace sluice {

namespace {

constexpr size_t kMessageBytesMax = 1024;  // of a TransferResult

template <typename Message>
bool Parse(std::string_view bytes, size_t bytes_max, Message* message) {
  return bytes.size() <= bytes_max && message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

Status Wrong(std::string_view field, std::string_view found, std::string_view expected) {
  return absl::InternalError(absl::StrCat("handoff record: ", std::string(field), " is ", std::string(found),
                                          ", expected ", std::string(expected)));
}

Status CheckEqual(std::string_view field, uint64_t found, uint64_t expected) {
  return found == expected ? absl::OkStatus() : Wrong(field, absl::StrCat(found), absl::StrCat(expected));
}

Status CheckToken(std::string_view field, TokenId token, int vocab_size) {
  if (token >= 0 && token < vocab_size) return absl::OkStatus();
  return Wrong(field, absl::StrCat(token), absl::StrCat("0 to ", vocab_size - 1));
}

Status CheckAtMost(std::string_view field, size_t found, size_t limit) {
  return found <= limit ? absl::OkStatus() : Wrong(field, absl::StrCat(found), absl::StrCat("at most ", limit));
}

Status CheckUnsent(const proto::ChoiceState& choice, int vocab_size) {
  SLUICE_RETURN_IF_ERROR(CheckAtMost("unsent tokens", static_cast<size_t>(choice.unsent_size()),
                                     static_cast<size_t>(choice.generated_size())));
  for (const proto::GeneratedToken& token : choice.unsent()) {
    SLUICE_RETURN_IF_ERROR(CheckToken("unsent token", token.token(), vocab_size));
    SLUICE_RETURN_IF_ERROR(
        CheckAtMost("logprobs of a token", static_cast<size_t>(token.top_size()), SamplingParams::kMaxTopLogprobs));
    for (const proto::TokenLogprob& top : token.top())
      SLUICE_RETURN_IF_ERROR(CheckToken("token of a logprob", top.token(), vocab_size));
  }
  return absl::OkStatus();
}

Status CheckChoice(const proto::ChoiceState& choice, int index, const HandoffExpectation& expected) {
  SLUICE_RETURN_IF_ERROR(CheckEqual("choice index", choice.index(), static_cast<uint64_t>(index)));
  SLUICE_RETURN_IF_ERROR(CheckEqual("tokens of a choice", static_cast<uint64_t>(choice.generated_size()), 1));
  SLUICE_RETURN_IF_ERROR(CheckToken("generated token", choice.generated(0), expected.vocab_size));
  SLUICE_RETURN_IF_ERROR(CheckUnsent(choice, expected.vocab_size));
  if (!proto::FinishReason_IsValid(choice.finish())) return Wrong("finish", absl::StrCat(choice.finish()), "0 to 2");
  if (choice.finish() == proto::FINISH_NONE && expected.max_tokens < 2)
    return Wrong("finish after max_tokens", "FINISH_NONE", "FINISH_STOP or FINISH_LENGTH");
  SLUICE_RETURN_IF_ERROR(CheckAtMost("held text's bytes", choice.held_text().size(), SamplingParams::kMaxStopBytes));
  return CheckAtMost("pending bytes", choice.pending_bytes().size(), 3);
}

Status CheckChoices(const proto::HandoffRecord& record, const HandoffExpectation& expected) {
  SLUICE_RETURN_IF_ERROR(
      CheckEqual("choices", static_cast<uint64_t>(record.choices_size()), static_cast<uint64_t>(expected.n)));
  bool any_goes_on = false;
  for (int i = 0; i < record.choices_size(); ++i) {
    SLUICE_RETURN_IF_ERROR(CheckChoice(record.choices(i), i, expected));
    any_goes_on |= record.choices(i).finish() == proto::FINISH_NONE;
  }
  const auto kv_tokens = static_cast<uint64_t>(expected.kv_tokens);
  if (any_goes_on) return CheckEqual("kv_tokens", record.kv_tokens(), kv_tokens);
  return CheckAtMost("kv_tokens", record.kv_tokens(), kv_tokens);
}

Status CheckSampling(const proto::HandoffRecord& record, const HandoffExpectation& expected) {
  const Status valid = FromProto(record.sampling()).Validate(expected.vocab_size);
  if (!valid.ok()) return absl::InternalError(absl::StrCat("handoff record: ", valid.message()));
  SLUICE_RETURN_IF_ERROR(
      CheckEqual("n", static_cast<uint64_t>(record.sampling().n()), static_cast<uint64_t>(expected.n)));
  return CheckEqual("max_tokens", static_cast<uint64_t>(record.sampling().max_tokens()),
                    static_cast<uint64_t>(expected.max_tokens));
}

}  // namespace

proto::Hello MakeHello(std::string_view role, Epoch epoch, const std::string& model_hash, const proto::KvLayout& layout,
                       KvCodec store, const std::vector<KvCodec>& wire) {
  proto::Hello hello;
  hello.set_protocol_version(kKvProtocolVersion);
  hello.set_role(std::string(role));
  hello.set_epoch(epoch.value);
  hello.set_model_hash(model_hash);
  *hello.mutable_layout() = layout;
  hello.set_store_codec(std::string(Name(store)));
  for (const KvCodec codec : wire) hello.add_wire_codecs(std::string(Name(codec)));
  return hello;
}

StatusOr<proto::Hello> ParseHello(std::string_view bytes) {
  proto::Hello hello;
  if (!Parse(bytes, kHelloBytesMax, &hello))
    return absl::InvalidArgumentError(absl::StrCat("not a hello of at most ", kHelloBytesMax, " bytes"));
  return hello;
}

Status CompareHello(const proto::Hello& mine, const proto::Hello& theirs) {
  std::vector<std::string> differences;
  const auto compare = [&](std::string_view field, const auto& my_value, const auto& their_value) {
    if (my_value != their_value)
      differences.push_back(absl::StrCat(std::string(field), ": ours ", my_value, ", theirs ", their_value));
  };
  compare("protocol version", mine.protocol_version(), theirs.protocol_version());
  compare("model hash", mine.model_hash(), theirs.model_hash());
  if (SharedWireCodecs(mine, theirs).empty())
    differences.push_back(absl::StrCat("no wire codec in common: ours ", absl::StrJoin(mine.wire_codecs(), "|"),
                                       ", theirs ", absl::StrJoin(theirs.wire_codecs(), "|")));
  const Status layout = Compare(mine.layout(), theirs.layout());
  if (!layout.ok()) differences.push_back(std::string(layout.message()));
  const bool complementary = (mine.role() == "prefill" && theirs.role() == "decode") ||
                             (mine.role() == "decode" && theirs.role() == "prefill");
  if (!complementary)
    differences.push_back(
        absl::StrCat("roles must be prefill and decode: ours ", mine.role(), ", theirs ", theirs.role()));
  if (differences.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("handshake refused: ", absl::StrJoin(differences, "; ")));
}

std::vector<KvCodec> SharedWireCodecs(const proto::Hello& mine, const proto::Hello& theirs) {
  const auto names = [](const proto::Hello& hello, std::string_view name) {
    return std::find(hello.wire_codecs().begin(), hello.wire_codecs().end(), name) != hello.wire_codecs().end();
  };
  std::vector<KvCodec> shared;
  for (const KvCodecInfo& info : KvCodecs()) {
    if (names(mine, info.name) && names(theirs, info.name)) shared.push_back(info.codec);
  }
  return shared;
}

size_t HandoffRecordBytesMax(const HandoffExpectation& expected) {
  // A token id takes at most 10 bytes as a varint. A choice: its token with logprobs and text, and held text. The rest:
  // sampling with all of its lists at their limits.
  constexpr size_t kSamplingBytes =
      SamplingParams::kMaxLogitBias * 24 + SamplingParams::kMaxStops * (SamplingParams::kMaxStopBytes + 32) + 512;
  constexpr size_t kChoiceBytes = SamplingParams::kMaxTopLogprobs * 24 + 4 * SamplingParams::kMaxStopBytes + 1024;
  return static_cast<size_t>(expected.prompt_tokens) * 10 + static_cast<size_t>(expected.n) * kChoiceBytes +
         kSamplingBytes + expected.kept_bytes_max + 1024;
}

Status Validate(const proto::HandoffRecord& record, const HandoffExpectation& expected) {
  SLUICE_RETURN_IF_ERROR(CheckEqual("request id", record.request_id(), expected.request.value));
  SLUICE_RETURN_IF_ERROR(CheckEqual("prompt tokens", static_cast<uint64_t>(record.prompt_ids_size()),
                                    static_cast<uint64_t>(expected.prompt_tokens)));
  for (const TokenId token : record.prompt_ids())
    SLUICE_RETURN_IF_ERROR(CheckToken("prompt token", token, expected.vocab_size));
  SLUICE_RETURN_IF_ERROR(
      CheckEqual("kv_from_token", record.kv_from_token(), static_cast<uint64_t>(expected.kv_from_token)));
  SLUICE_RETURN_IF_ERROR(CheckSampling(record, expected));
  SLUICE_RETURN_IF_ERROR(CheckChoices(record, expected));
  SLUICE_RETURN_IF_ERROR(
      CheckEqual("usage.prompt_tokens", record.usage().prompt_tokens(), static_cast<uint64_t>(expected.prompt_tokens)));
  SLUICE_RETURN_IF_ERROR(
      CheckEqual("usage.completion_tokens", record.usage().completion_tokens(), static_cast<uint64_t>(expected.n)));
  // The last prompt token is always computed: without its logits there is no first token.
  return CheckAtMost("usage.cached_tokens", record.usage().cached_tokens(),
                     static_cast<size_t>(expected.prompt_tokens) - 1);
}

StatusOr<proto::HandoffRecord> ParseHandoffRecord(std::string_view bytes, const HandoffExpectation& expected) {
  const size_t bytes_max = HandoffRecordBytesMax(expected);
  proto::HandoffRecord record;
  if (!Parse(bytes, bytes_max, &record))
    return absl::InternalError(absl::StrCat("not a handoff record of at most ", bytes_max, " bytes"));
  SLUICE_RETURN_IF_ERROR(Validate(record, expected));
  return record;
}

proto::TransferResult MakeTransferResult(RequestId request, ReservationId reservation, Tenure generation,
                                         const Status& status) {
  proto::TransferResult result;
  result.set_request_id(request.value);
  result.set_reservation_id(reservation.value);
  result.set_generation(generation.value);
  result.set_code(static_cast<int>(status.code()));
  // A proto string must be UTF-8, and a cut may fall into a character.
  std::string message(status.message().substr(0, kMessageBytesMax));
  std::replace_if(
      message.begin(), message.end(), [](unsigned char c) { return c >= 0x80; }, '?');
  result.set_message(std::move(message));
  return result;
}

StatusOr<proto::TransferResult> ParseTransferResult(std::string_view bytes) {
  proto::TransferResult result;
  if (!Parse(bytes, kTransferResultBytesMax, &result))
    return absl::InvalidArgumentError(
        absl::StrCat("not a transfer result of at most ", kTransferResultBytesMax, " bytes"));
  return result;
}

Status ToStatus(const proto::TransferResult& result) {
  if (result.code() == 0) return absl::OkStatus();
  const bool known = result.code() > 0 && result.code() <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return Status(known ? static_cast<absl::StatusCode>(result.code()) : absl::StatusCode::kUnknown, result.message());
}

}  // namespace sluice
