// Which sequences the next step runs. A pure function of the state: no clock (turns are counted in steps), no thread,
// no I/O. Memory is no question here, since a reservation holds every page that its sequences can need.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace sluice::decode {

struct SchedulerLimits {
  int batch_sequences_max = 0;  // of one step
  int admitted_max = 0;         // that take turns; the others wait in order of their commits
};

struct SequenceTurn {
  bool admitted = false;
  bool paused = false;  // its reader is behind: admitted, but not to be stepped
  // When it ran last: the caller numbers turns across all steps, in the order of Decision::step. (Numbers of steps
  // would not do: those that tie would be favoured by their place in the list again and again.) 0: never.
  uint64_t last_turn = 0;
  bool parked = false;  // its KV is elsewhere: neither to be admitted nor to be stepped
};

struct Decision {
  // Indices into the state, ascending in `admit`, in order of urgency in `step`.
  std::vector<int> admit;
  std::vector<int> step;  // may hold sequences of `admit`
};

// `sequences` are in order of their commits. Whoever ran longest ago goes first, before them those that never ran, so
// that with N admitted and a batch of B each runs at least every ceil(N / B) steps, and all equally often.
Decision Next(const SchedulerLimits& limits, absl::Span<const SequenceTurn> sequences);

}  // namespace sluice::decode
