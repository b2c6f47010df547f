#include "prefill/lifecycle.h"

#include <map>

#include "gtest/gtest.h"

namespace sluice::prefill {
namespace {

template <typename State, typename Event>
void ExpectExactly(const std::map<std::pair<State, Event>, State>& edges, int states, int events) {
  for (int s = 0; s < states; ++s) {
    for (int e = 0; e < events; ++e) {
      const auto from = static_cast<State>(s);
      const auto event = static_cast<Event>(e);
      const auto edge = edges.find({from, event});
      const auto next = Next(from, event);
      const std::optional<State> expected = edge == edges.end() ? std::nullopt : std::optional(edge->second);
      EXPECT_EQ(next, expected) << Name(from) << " on event " << e;
    }
  }
}

TEST(Lifecycle, APromptHasTheseEdgesAndNoOther) {
  using S = PromptState;
  using E = PromptEvent;
  ExpectExactly<S, E>({{{S::kQueued, E::kStart}, S::kComputing},
                       {{S::kQueued, E::kGiveUp}, S::kEnded},
                       {{S::kComputing, E::kComputed}, S::kHandingOff},
                       {{S::kComputing, E::kGiveUp}, S::kStopping},
                       {{S::kComputing, E::kTransferEnded}, S::kEnded},
                       {{S::kHandingOff, E::kGiveUp}, S::kStopping},
                       {{S::kHandingOff, E::kTransferEnded}, S::kEnded},
                       {{S::kStopping, E::kTransferEnded}, S::kEnded}},
                      kPromptStates, kPromptEvents);
}

TEST(Lifecycle, ATransferHasTheseEdgesAndNoOther) {
  using S = TransferState;
  using E = TransferEvent;
  ExpectExactly<S, E>({{{S::kConnecting, E::kConnected}, S::kSending},
                       {{S::kConnecting, E::kFault}, S::kFailed},
                       {{S::kSending, E::kCommitSent}, S::kAwaitingResult},
                       {{S::kSending, E::kFault}, S::kFailed},
                       {{S::kAwaitingResult, E::kAcknowledged}, S::kDone},
                       {{S::kAwaitingResult, E::kFault}, S::kFailed}},
                      kTransferStates, kTransferEvents);
}

}  // namespace
}  // namespace sluice::prefill
