#include "prefill/lifecycle.h"

namespace sluice::prefill {

std::string_view Name(PromptState state) {
  switch (state) {
    case PromptState::kQueued:
      return "queued";
    case PromptState::kComputing:
      return "computing";
    case PromptState::kHandingOff:
      return "handing off";
    case PromptState::kStopping:
      return "stopping";
    case PromptState::kEnded:
      return "ended";
  }
  return "";
}

std::optional<PromptState> Next(PromptState from, PromptEvent event) {
  using S = PromptState;
  using E = PromptEvent;
  switch (from) {
    case S::kQueued:
      if (event == E::kStart) return S::kComputing;  // do begin its transfer
      if (event == E::kGiveUp) return S::kEnded;     // do answer
      return std::nullopt;
    case S::kComputing:
      if (event == E::kComputed) return S::kHandingOff;  // do commit
      if (event == E::kGiveUp) return S::kStopping;      // do cancel the transfer
      if (event == E::kTransferEnded) return S::kEnded;  // do answer with its failure
      return std::nullopt;
    case S::kHandingOff:
      if (event == E::kGiveUp) return S::kStopping;      // do cancel the transfer
      if (event == E::kTransferEnded) return S::kEnded;  // do answer with its outcome
      return std::nullopt;
    case S::kStopping:
      if (event == E::kTransferEnded) return S::kEnded;  // do answer with why it was given up
      return std::nullopt;
    case S::kEnded:
      return std::nullopt;
  }
  return std::nullopt;
}

std::string_view Name(TransferState state) {
  switch (state) {
    case TransferState::kConnecting:
      return "connecting";
    case TransferState::kSending:
      return "sending";
    case TransferState::kAwaitingResult:
      return "awaiting the result";
    case TransferState::kDone:
      return "done";
    case TransferState::kFailed:
      return "failed";
  }
  return "";
}

std::optional<TransferState> Next(TransferState from, TransferEvent event) {
  using S = TransferState;
  using E = TransferEvent;
  switch (from) {
    case S::kConnecting:
      if (event == E::kConnected) return S::kSending;  // do send what waits
      if (event == E::kFault) return S::kFailed;       // do report
      return std::nullopt;
    case S::kSending:
      if (event == E::kCommitSent) return S::kAwaitingResult;  // do start the result's deadline
      if (event == E::kFault) return S::kFailed;               // do tell decode and report
      return std::nullopt;
    case S::kAwaitingResult:
      if (event == E::kAcknowledged) return S::kDone;  // do report
      if (event == E::kFault) return S::kFailed;       // do tell decode and report
      return std::nullopt;
    case S::kDone:
    case S::kFailed:
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace sluice::prefill
