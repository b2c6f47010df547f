// What `sluice eval` found, as tables, JSON and plots.
#pragma once

#include <array>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "eval/agreement.h"
#include "eval/needles.h"
#include "eval/streamed.h"
#include "eval/svg_plot.h"
#include "nlohmann/json.hpp"

namespace sluice {

struct StreamedReport {
  int64_t texts = 0;
  int64_t tokens = 0;  // of each
  int64_t block = 0;
  std::vector<StreamedRow> rows;
};

struct AgreementReport {
  int64_t texts = 0;
  int64_t prompt_tokens = 0;
  int64_t continuation = 0;
  int64_t greedy = 0;
  Agreement result;
};

struct NeedlesReport {
  std::vector<NeedlePrompt> prompts;
  std::vector<NeedleRow> rows;

  // Answers are told by the fifth of the context in which the fact stands.
  static constexpr size_t kDepths = 5;
  struct Depth {
    int64_t exact = 0;
    int64_t prompts = 0;
    double nll = 0;  // the sum
  };
  std::array<Depth, kDepths> ByDepth(const NeedleRow& row, int64_t length) const;
  std::set<int64_t> lengths() const;
};

// Parts that were not measured are absent.
struct EvalReport {
  std::string model;
  bool exact = false;
  std::optional<StreamedReport> perplexity;
  std::optional<AgreementReport> agreement;
  std::optional<NeedlesReport> needles;
  std::optional<StreamedReport> stream;
};

// Tables, each with a sentence of what it shows.
void Print(const StreamedReport& report, const std::string& title, std::ostream& out);
void Print(const AgreementReport& report, std::ostream& out);
void Print(const NeedlesReport& report, std::ostream& out);

// All numbers, unrounded; negative log-likelihoods are in nats a token.
nlohmann::ordered_json ToJson(const EvalReport& report);

// A plot for each part that was measured, by its name.
std::vector<std::pair<std::string, Plot>> Plots(const EvalReport& report);

}  // namespace sluice
