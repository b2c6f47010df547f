// What can happen to one request between its validation and its last token, as a table. Pure: RequestFlow asks it what
// to do and does it.
#pragma once

#include <string_view>

namespace sluice {

enum class FlowState {
  kNew,
  kQueued,          // until a prefill would begin with it soon; holds nothing
  kReserving,       // asked a decode worker for pages
  kWaitingForRoom,  // all of them were full
  kHandingOff,      // Generate is open, prefill runs, or decode does its part
  kRearming,        // prefill failed: asking decode for a new ticket for the same pages
  kStreaming,       // tokens come
  kFinished,
  kFailed,
  kCancelled,
};
inline constexpr int kFlowStates = 10;

enum class FlowEvent {
  kStart,
  kAdmitted,  // its turn has come
  kReserved,
  kReservedLocal,  // and decode does the prefill itself
  kNoRoom,
  kReserveFailed,
  kNoWorker,  // the router has nobody left
  kWaitOver,
  kPrefillDone,
  kPrefillFailed,
  kRearmed,
  kRearmFailed,
  kOvertaken,  // no new ticket, since the handoff had arrived after all
  kTokens,
  kLast,          // tokens, and there are no more
  kStreamBroken,  // decode has failed, or lost the reservation
  kDeadline,
  kClientLeft,
};
inline constexpr int kFlowEvents = 18;

enum class FlowAction {
  kNone,
  kQueue,       // choose workers, and wait for a turn where prefill would not begin soon
  kReserve,     // ask decode for pages
  kWait,        // for room, as long as decode hinted
  kOpenLegs,    // Generate on decode, Run on prefill
  kListen,      // Generate only
  kRearm,       // drop the prefill leg, choose another, ask for its ticket
  kRunPrefill,  // with the new ticket
  kStartOver,   // drop both legs and what came of them, release the pages, queue again
  kDeliver,
  kComplete,  // deliver, then end the answer
  kFail,      // drop both legs, release the pages, tell the client
  kDrop,      // drop both legs, release the pages; there is no client any more
};

// What the table needs to know of the moment.
struct FlowFacts {
  bool may_wait = false;        // for room: time is left for it
  bool another_decode = false;  // an untried one, after a refusal for want of room
  bool may_rearm = false;       // the failure is prefill's, tries are left and so is another worker
  bool may_start_over = false;  // another reservation may do better, tries are left, nothing has been sent
};

struct FlowStep {
  FlowState to = FlowState::kFailed;
  FlowAction action = FlowAction::kNone;
  bool operator==(const FlowStep&) const = default;
};

// Every edge. Events that a state does not expect (answers that crossed with something else) leave it as it is; final
// states are left by nothing.
FlowStep Transition(FlowState from, FlowEvent event, const FlowFacts& facts);

inline bool IsFinal(FlowState state) { return state >= FlowState::kFinished; }
std::string_view Name(FlowState state);
std::string_view Name(FlowEvent event);

}  // namespace sluice
