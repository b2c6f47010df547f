#include "gateway/request_lifecycle.h"

#include <set>

#include "gtest/gtest.h"

namespace sluice {
namespace {

using S = FlowState;
using E = FlowEvent;
using A = FlowAction;

constexpr FlowFacts kNothing{};
constexpr FlowFacts kRearm{.may_rearm = true};
constexpr FlowFacts kAgain{.may_start_over = true};
constexpr FlowFacts kAnother{.may_wait = true, .another_decode = true};
constexpr FlowFacts kWait{.may_wait = true};

struct Edge {
  S from;
  E event;
  FlowFacts facts;
  S to;
  A action;
};

// Every edge that does something. All others must leave the state as it is.
const Edge kEdges[] = {
    {S::kNew, E::kStart, kNothing, S::kQueued, A::kQueue},
    {S::kQueued, E::kAdmitted, kNothing, S::kReserving, A::kReserve},
    {S::kQueued, E::kReservedLocal, kNothing, S::kHandingOff, A::kListen},
    {S::kQueued, E::kNoWorker, kNothing, S::kFailed, A::kFail},
    {S::kReserving, E::kReserved, kNothing, S::kHandingOff, A::kOpenLegs},
    {S::kReserving, E::kReservedLocal, kNothing, S::kHandingOff, A::kListen},
    {S::kReserving, E::kNoRoom, kAnother, S::kQueued, A::kQueue},
    {S::kReserving, E::kNoRoom, kWait, S::kWaitingForRoom, A::kWait},
    {S::kReserving, E::kNoRoom, kNothing, S::kFailed, A::kFail},
    {S::kReserving, E::kReserveFailed, kAgain, S::kQueued, A::kStartOver},
    {S::kReserving, E::kReserveFailed, kNothing, S::kFailed, A::kFail},
    {S::kWaitingForRoom, E::kWaitOver, kNothing, S::kQueued, A::kQueue},
    {S::kHandingOff, E::kPrefillFailed, kRearm, S::kRearming, A::kRearm},
    {S::kHandingOff, E::kPrefillFailed, kAgain, S::kQueued, A::kStartOver},
    {S::kHandingOff, E::kPrefillFailed, kNothing, S::kFailed, A::kFail},
    {S::kHandingOff, E::kTokens, kNothing, S::kStreaming, A::kDeliver},
    {S::kHandingOff, E::kLast, kNothing, S::kFinished, A::kComplete},
    {S::kHandingOff, E::kStreamBroken, kAgain, S::kQueued, A::kStartOver},
    {S::kHandingOff, E::kStreamBroken, kNothing, S::kFailed, A::kFail},
    {S::kRearming, E::kRearmed, kNothing, S::kHandingOff, A::kRunPrefill},
    {S::kRearming, E::kRearmFailed, kAgain, S::kQueued, A::kStartOver},
    {S::kRearming, E::kRearmFailed, kNothing, S::kFailed, A::kFail},
    {S::kRearming, E::kOvertaken, kNothing, S::kHandingOff, A::kNone},
    {S::kRearming, E::kNoWorker, kNothing, S::kFailed, A::kFail},
    {S::kRearming, E::kTokens, kNothing, S::kStreaming, A::kDeliver},
    {S::kRearming, E::kLast, kNothing, S::kFinished, A::kComplete},
    {S::kRearming, E::kStreamBroken, kAgain, S::kQueued, A::kStartOver},
    {S::kRearming, E::kStreamBroken, kNothing, S::kFailed, A::kFail},
    {S::kStreaming, E::kTokens, kNothing, S::kStreaming, A::kDeliver},
    {S::kStreaming, E::kLast, kNothing, S::kFinished, A::kComplete},
    {S::kStreaming, E::kStreamBroken, kAgain, S::kQueued, A::kStartOver},
    {S::kStreaming, E::kStreamBroken, kNothing, S::kFailed, A::kFail},
};

TEST(RequestLifecycle, EveryEdgeIsAsListed) {
  for (const Edge& edge : kEdges) {
    const FlowStep step = Transition(edge.from, edge.event, edge.facts);
    EXPECT_EQ(step, (FlowStep{edge.to, edge.action})) << Name(edge.from) << " on " << Name(edge.event);
  }
}

TEST(RequestLifecycle, EventsThatAStateDoesNotExpectChangeNothing) {
  std::set<std::pair<S, E>> listed;
  for (const Edge& edge : kEdges) listed.insert({edge.from, edge.event});
  for (int s = 0; s < kFlowStates; ++s) {
    for (int e = 0; e < kFlowEvents; ++e) {
      const S from = static_cast<S>(s);
      const E event = static_cast<E>(e);
      const bool ends = event == E::kDeadline || event == E::kClientLeft;
      if (listed.contains({from, event}) || (ends && !IsFinal(from))) continue;
      EXPECT_EQ(Transition(from, event, kAgain), (FlowStep{from, A::kNone})) << Name(from) << " on " << Name(event);
    }
  }
}

TEST(RequestLifecycle, DeadlineAndClientEndEveryStateThatIsNotFinal) {
  for (int s = 0; s < kFlowStates; ++s) {
    const S from = static_cast<S>(s);
    if (IsFinal(from)) continue;
    EXPECT_EQ(Transition(from, E::kDeadline, kAgain), (FlowStep{S::kFailed, A::kFail})) << Name(from);
    EXPECT_EQ(Transition(from, E::kClientLeft, kAgain), (FlowStep{S::kCancelled, A::kDrop})) << Name(from);
  }
}

TEST(RequestLifecycle, EveryStateButNewIsReached) {
  std::set<S> reached = {S::kNew, S::kCancelled};
  for (const Edge& edge : kEdges) reached.insert(edge.to);
  EXPECT_EQ(reached.size(), static_cast<size_t>(kFlowStates));
}

}  // namespace
}  // namespace sluice
