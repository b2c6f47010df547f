// Text to measure with where the user has none: a little prose, then a chronicle that is generated from a seed and
// never ends. Generated sentences repeat their patterns, so a cache that remembers far back predicts them better than
// it would ordinary prose.
#pragma once

#include <cstdint>
#include <string>

#include "common/rng.h"

namespace sluice {

// A sentence of the chronicle.
std::string SampleSentence(Rng& rng);

// About so many words or more, in paragraphs. A seed gives the same text everywhere.
std::string SampleText(uint64_t seed, int64_t words);

}  // namespace sluice
