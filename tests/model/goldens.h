// Reads the goldens of tests/data: tensors of the tiny models, and what the reference says of the real one. Aborts
// where a file is not what it should be.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/ids.h"

namespace sluice {

struct GoldenTensor {
  std::vector<int64_t> shape;
  std::vector<float> f32;  // one of the two is filled
  std::vector<int64_t> i64;
};

// f32, i64 and i32 tensors by name, the last widened.
std::map<std::string, GoldenTensor> ReadGoldenTensors(const std::string& path);

struct RealPrompt {
  struct Step {
    std::vector<std::pair<TokenId, double>> top;  // [id, logit], the likeliest first
    double log_sum_exp = 0;
    double margin = 0;  // top-1 minus top-2 logit
  };
  std::string name;
  std::vector<TokenId> ids;
  std::vector<TokenId> greedy_ids;
  std::vector<std::pair<TokenId, double>> first_top20;
  std::vector<Step> steps;  // of greedy_ids, from the prompt's last token on
};
std::vector<RealPrompt> ReadRealPrompts(const std::string& path);

struct RealPerplexity {
  std::vector<TokenId> ids;
  double whole = 0;      // one window, every token but the first predicted
  double chunks512 = 0;  // windows of 512, tokens 257..511 of each counted
};
RealPerplexity ReadRealPerplexity(const std::string& path);

}  // namespace sluice
