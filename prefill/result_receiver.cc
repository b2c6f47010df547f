#include "prefill/result_receiver.h"

#include "model/handoff.h"
#include "model/kv_frame.h"

namespace sluice::prefill {

StatusOr<std::string> ResultReceiver::OnHello(ConnectionId, std::string_view) {
  return absl::FailedPreconditionError("a prefill process takes no KV");
}

StatusOr<Landing> ResultReceiver::OnMessage(ConnectionId, std::string_view header, size_t payload_bytes) {
  SLUICE_ASSIGN_OR_RETURN(const KvFrameHeader decoded, DecodeKvFrameHeader(header));
  if (decoded.kind != FrameKind::kResult)
    return absl::InvalidArgumentError(absl::StrCat("a frame of kind ", static_cast<int>(decoded.kind), " for prefill"));
  if (payload_bytes > kTransferResultBytesMax || decoded.payload_bytes != payload_bytes)
    return absl::InvalidArgumentError(absl::StrCat("a result of ", payload_bytes, " bytes, its header says ",
                                                   decoded.payload_bytes, ", at most ", kTransferResultBytesMax));
  LandingResult& landing = landings_[++last_landing_];
  landing.header = std::string(header);
  landing.payload.resize(payload_bytes);
  return Landing{.memory = {absl::MakeSpan(landing.payload)}, .token = last_landing_};
}

void ResultReceiver::OnLanded(ConnectionId connection, uint64_t token, const Status& status) {
  const auto node = landings_.extract(token);
  if (!status.ok()) return;  // OnClosed follows
  const LandingResult& landing = node.mapped();
  const std::string_view text(reinterpret_cast<const char*>(landing.payload.data()), landing.payload.size());
  const Status intact = VerifyCrc(landing.header, landing.payload);
  on_result_(connection, intact.ok() ? ParseTransferResult(text) : intact);
}

void ResultReceiver::OnClosed(ConnectionId connection, const Status& why) { on_lost_(connection, why); }

}  // namespace sluice::prefill
