// The two lifecycles of this process as tables: a prompt's, driven by the engine thread, and a transfer's, driven by
// the sender's. Pure: who applies an edge does what it says.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace sluice::prefill {

enum class PromptState : uint8_t {
  kQueued,      // accepted; has no pages and no transfer
  kComputing,   // has both; chunks run and are sent
  kHandingOff,  // computed; its record is with the sender
  kStopping,    // given up; waits until the sender needs its pages no more
  kEnded,       // answered, pages are back
};
enum class PromptEvent : uint8_t {
  kStart,          // pages were leased
  kComputed,       // the last chunk ran and its first tokens are chosen
  kGiveUp,         // cancelled, too late, or failed here
  kTransferEnded,  // the sender reported: success or failure
};
inline constexpr int kPromptStates = 5;
inline constexpr int kPromptEvents = 4;
std::string_view Name(PromptState state);
// Nothing where the event cannot happen or has no effect in that state.
std::optional<PromptState> Next(PromptState from, PromptEvent event);

enum class TransferState : uint8_t {
  kConnecting,      // no hello from decode yet; frames and even the commit may wait already
  kSending,         // frames go
  kAwaitingResult,  // the commit is with the transport
  kDone,            // decode acknowledged the commit
  kFailed,
};
enum class TransferEvent : uint8_t {
  kConnected,     // the peer is the process that issued the ticket, and its hello fits
  kCommitSent,    // all frames and the commit were given to the transport
  kAcknowledged,  // decode has everything and has checked it
  kFault,         // decode's refusal, a lost connection, a deadline, a cancellation
};
inline constexpr int kTransferStates = 5;
inline constexpr int kTransferEvents = 4;
std::string_view Name(TransferState state);
std::optional<TransferState> Next(TransferState from, TransferEvent event);

}  // namespace sluice::prefill
