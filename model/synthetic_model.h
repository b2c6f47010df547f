// Writes a Hugging Face folder with random weights: the true attention of a known model, with few hidden channels, a
// small MLP and a small vocabulary. For measuring transfer and memory, where only the shape of the cache matters and no
// real model is at hand; what it says means nothing, and config.json says that it is synthetic.
#pragma once

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "common/status.h"

namespace sluice {

struct SyntheticModelOptions {
  std::string like = "v2-lite";  // whose attention: one of SyntheticModelNames
  int layers = 0;                // 0 takes that model's; cache and weights grow with it
  int hidden_size = 256;
  int intermediate_size = 512;
  int vocab_size = 512;  // from 258 on: a token for each byte, begin and end
  uint64_t seed = 1;     // the same options write the same bytes
};

// "v2-lite"
absl::Span<const std::string> SyntheticModelNames();

// Makes `folder`, which must not be there yet. InvalidArgument names the option and its value.
Status WriteSyntheticModel(const SyntheticModelOptions& options, const std::string& folder);

}  // namespace sluice
