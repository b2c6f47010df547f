#include "decode/scheduler.h"

#include <algorithm>
#include <tuple>

namespace sluice::decode {

// Life of a request, step 8: each step runs the admitted sequences, those that waited longest first.
Decision Next(const SchedulerLimits& limits, absl::Span<const SequenceTurn> sequences) {
  Decision decision;
  int admitted = 0;
  for (const SequenceTurn& sequence : sequences) admitted += sequence.admitted ? 1 : 0;
  for (int i = 0; i < static_cast<int>(sequences.size()); ++i) {
    const SequenceTurn& sequence = sequences[static_cast<size_t>(i)];
    if (sequence.parked) continue;
    if (!sequence.admitted) {
      if (admitted >= limits.admitted_max) continue;
      ++admitted;
      decision.admit.push_back(i);
    }
    if (!sequence.paused) decision.step.push_back(i);
  }
  const size_t batch = std::min(decision.step.size(), static_cast<size_t>(limits.batch_sequences_max));
  std::partial_sort(decision.step.begin(), decision.step.begin() + static_cast<ptrdiff_t>(batch), decision.step.end(),
                    [sequences](int a, int b) {
                      return std::tuple(sequences[static_cast<size_t>(a)].last_turn, a) <
                             std::tuple(sequences[static_cast<size_t>(b)].last_turn, b);
                    });
  decision.step.resize(batch);
  return decision;
}

}  // namespace sluice::decode
