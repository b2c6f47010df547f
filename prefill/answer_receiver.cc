#include "prefill/answer_receiver.h"

#include "model/handoff.h"

namespace sluice::prefill {

namespace {

StatusOr<size_t> PayloadBytesMax(FrameKind kind) {
  switch (kind) {
    case FrameKind::kResult:
      return kTransferResultBytesMax;
    case FrameKind::kCredit:
      return kCreditPayloadBytes;
    case FrameKind::kResend:
      return size_t{0};
    case FrameKind::kKv:
    case FrameKind::kCommit:
    case FrameKind::kAbort:
      break;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a frame of kind ", static_cast<int>(kind), ", which only prefill sends"));
}

}  // namespace

StatusOr<std::string> AnswerReceiver::OnHello(ConnectionId, std::string_view) {
  return absl::FailedPreconditionError("a prefill process takes no KV");
}

StatusOr<Landing> AnswerReceiver::OnMessage(ConnectionId, std::string_view header_bytes, size_t payload_bytes) {
  SLUICE_ASSIGN_OR_RETURN(const KvFrameHeader header, DecodeKvFrameHeader(header_bytes));
  SLUICE_ASSIGN_OR_RETURN(const size_t payload_bytes_max, PayloadBytesMax(header.kind));
  if (payload_bytes > payload_bytes_max || header.payload_bytes != payload_bytes)
    return absl::InvalidArgumentError(absl::StrCat("an answer of ", payload_bytes, " bytes, its header says ",
                                                   header.payload_bytes, ", at most ", payload_bytes_max));
  LandingAnswer& landing = landings_[++last_landing_];
  landing.header_bytes = std::string(header_bytes);
  landing.header = header;
  landing.payload.resize(payload_bytes);
  return Landing{.memory = {absl::MakeSpan(landing.payload)}, .token = last_landing_};
}

void AnswerReceiver::OnLanded(ConnectionId connection, uint64_t token, const Status& status) {
  const auto node = landings_.extract(token);
  if (!status.ok()) return;  // OnClosed follows
  on_answer_(connection, Parse(node.mapped()));
}

StatusOr<Answer> AnswerReceiver::Parse(const LandingAnswer& landing) {
  SLUICE_RETURN_IF_ERROR(VerifyCrc(landing.header_bytes, landing.payload));
  if (landing.header.kind == FrameKind::kResend) return Answer(WantedAgain{landing.header});
  if (landing.header.kind == FrameKind::kCredit) {
    SLUICE_ASSIGN_OR_RETURN(const uint64_t given, DecodeCredit(landing.payload));
    return Answer(Credit{given});
  }
  SLUICE_ASSIGN_OR_RETURN(
      proto::TransferResult result,
      ParseTransferResult({reinterpret_cast<const char*>(landing.payload.data()), landing.payload.size()}));
  return Answer(std::move(result));
}

void AnswerReceiver::OnClosed(ConnectionId connection, const Status& why) { on_lost_(connection, why); }

}  // namespace sluice::prefill
