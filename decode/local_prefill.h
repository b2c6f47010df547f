// Whether decode computes the rest of a prompt itself instead of having its KV shipped: where the rest is so short that
// shipping cannot pay. Pure.
//
// Decode decides and not the gateway: only decode knows how much of the prompt it really has, and how busy it is now.
// What the other way would take it cannot know, so the gateway's prediction comes with the reservation.
#pragma once

#include <cstdint>

namespace sluice::decode {

struct LocalPrefillFacts {
  int64_t uncached_tokens = 0;  // of the prompt

  // Shipping, as predicted: until prefill begins, until it is done, and for each token that is not here.
  double queue_seconds = 0;
  double compute_seconds = 0;
  double transfer_seconds_per_token = 0;

  // Here.
  int64_t tokens_max = 0;        // longer rests are always shipped; 0: all are
  int64_t waiting_tokens = 0;    // of prompts that decode has taken on before
  double tokens_per_second = 0;  // of computing prompts; 0: not known
  int chunk_tokens = 1;          // computed between two decode steps
  double step_seconds = 0;       // of such a step
  int running_sequences = 0;     // which all wait while a chunk is computed
};

// True where the first token would come no later than by shipping, the time that it costs the running sequences
// counted as if it were the prompt's own.
bool PrefillsLocally(const LocalPrefillFacts& facts);

}  // namespace sluice::decode
