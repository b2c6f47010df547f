#include "gateway/request_lifecycle.h"

namespace sluice {

namespace {

using S = FlowState;
using E = FlowEvent;
using A = FlowAction;

FlowStep StartOverOrFail(const FlowFacts& facts) {
  return facts.may_start_over ? FlowStep{S::kQueued, A::kStartOver} : FlowStep{S::kFailed, A::kFail};
}

FlowStep WhileQueued(FlowEvent event) {
  switch (event) {
    case E::kAdmitted:
      return {S::kReserving, A::kReserve};
    case E::kReservedLocal:
      return {S::kHandingOff, A::kListen};
    case E::kNoWorker:
      return {S::kFailed, A::kFail};
    default:
      return {S::kQueued, A::kNone};
  }
}

FlowStep WhileReserving(FlowEvent event, const FlowFacts& facts) {
  switch (event) {
    case E::kReserved:
      return {S::kHandingOff, A::kOpenLegs};
    case E::kReservedLocal:
      return {S::kHandingOff, A::kListen};
    case E::kNoRoom:
      if (facts.another_decode) return {S::kQueued, A::kQueue};
      if (facts.may_wait) return {S::kWaitingForRoom, A::kWait};
      return {S::kFailed, A::kFail};
    case E::kReserveFailed:
      return StartOverOrFail(facts);
    default:
      return {S::kReserving, A::kNone};
  }
}

FlowStep WhileHandingOff(FlowEvent event, const FlowFacts& facts) {
  switch (event) {
    case E::kPrefillFailed:
      return facts.may_rearm ? FlowStep{S::kRearming, A::kRearm} : StartOverOrFail(facts);
    case E::kTokens:
      return {S::kStreaming, A::kDeliver};
    case E::kLast:
      return {S::kFinished, A::kComplete};
    case E::kStreamBroken:
      return StartOverOrFail(facts);
    default:
      return {S::kHandingOff, A::kNone};
  }
}

FlowStep WhileRearming(FlowEvent event, const FlowFacts& facts) {
  switch (event) {
    case E::kRearmed:
      return {S::kHandingOff, A::kRunPrefill};
    case E::kRearmFailed:
      return StartOverOrFail(facts);
    case E::kOvertaken:
      return {S::kHandingOff, A::kNone};
    case E::kNoWorker:
      return {S::kFailed, A::kFail};
    // The commit had arrived after all: only the answer of the prefill worker was lost.
    case E::kTokens:
      return {S::kStreaming, A::kDeliver};
    case E::kLast:
      return {S::kFinished, A::kComplete};
    case E::kStreamBroken:
      return StartOverOrFail(facts);
    default:
      return {S::kRearming, A::kNone};
  }
}

FlowStep WhileStreaming(FlowEvent event, const FlowFacts& facts) {
  switch (event) {
    case E::kTokens:
      return {S::kStreaming, A::kDeliver};
    case E::kLast:
      return {S::kFinished, A::kComplete};
    case E::kStreamBroken:
      return StartOverOrFail(facts);
    // Decode has committed: how prefill fares no longer matters.
    default:
      return {S::kStreaming, A::kNone};
  }
}

}  // namespace

FlowStep Transition(FlowState from, FlowEvent event, const FlowFacts& facts) {
  if (IsFinal(from)) return {from, A::kNone};
  if (event == E::kDeadline) return {S::kFailed, A::kFail};
  if (event == E::kClientLeft) return {S::kCancelled, A::kDrop};
  switch (from) {
    case S::kNew:
      return event == E::kStart ? FlowStep{S::kQueued, A::kQueue} : FlowStep{S::kNew, A::kNone};
    case S::kQueued:
      return WhileQueued(event);
    case S::kReserving:
      return WhileReserving(event, facts);
    case S::kWaitingForRoom:
      return event == E::kWaitOver ? FlowStep{S::kQueued, A::kQueue} : FlowStep{S::kWaitingForRoom, A::kNone};
    case S::kHandingOff:
      return WhileHandingOff(event, facts);
    case S::kRearming:
      return WhileRearming(event, facts);
    case S::kStreaming:
      return WhileStreaming(event, facts);
    default:
      return {from, A::kNone};
  }
}

std::string_view Name(FlowState state) {
  constexpr std::string_view kNames[kFlowStates] = {"new",         "queued",   "reserving", "waiting for room",
                                                    "handing off", "rearming", "streaming", "finished",
                                                    "failed",      "cancelled"};
  return kNames[static_cast<int>(state)];
}

std::string_view Name(FlowEvent event) {
  constexpr std::string_view kNames[kFlowEvents] = {
      "start",     "admitted",  "reserved",     "reserved, local prefill", "no room",  "reserve failed",
      "no worker", "wait over", "prefill done", "prefill failed",          "rearmed",  "rearm failed",
      "overtaken", "tokens",    "last",         "stream broken",           "deadline", "client left"};
  return kNames[static_cast<int>(event)];
}

}  // namespace sluice
