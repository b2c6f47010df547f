#include "cli/eval_report.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace sluice {
namespace {

using nlohmann::ordered_json;

ordered_json CacheJson(const CacheCase& cache) {
  return {{"cache", cache.name}, {"codec", std::string(Name(cache.codec))}};
}

ordered_json CacheJson(const CacheCase& cache, const CachePolicy& policy) {
  ordered_json json = CacheJson(cache);
  json["policy"] = ToString(policy);
  json["budget"] = policy.kind == CachePolicyKind::kFull ? ordered_json() : ordered_json(policy.budget);
  return json;
}

ordered_json ToJson(const StreamedReport& report) {
  ordered_json json = {{"texts", report.texts}, {"tokens", report.tokens}, {"block", report.block}};
  for (const StreamedRow& row : report.rows) {
    ordered_json& j = json["rows"].emplace_back(CacheJson(row.cache, row.policy));
    j["tokens"] = row.tokens;
    j["nll"] = row.nll;
    j["perplexity"] = std::exp(row.nll);
    j["nll_by_block"] = row.blocks;
  }
  return json;
}

ordered_json ToJson(const AgreementReport& report) {
  ordered_json json = {{"texts", report.texts},
                       {"prompt_tokens", report.prompt_tokens},
                       {"continuation", report.continuation},
                       {"greedy", report.greedy},
                       {"full_nll", report.result.full_nll}};
  for (const AgreementRow& row : report.result.rows) {
    ordered_json& j = json["rows"].emplace_back(CacheJson(row.cache, row.policy));
    j["tokens"] = row.tokens;
    j["nll"] = row.nll;
    j["delta_nll"] = row.nll - report.result.full_nll;
    j["mean_kld"] = row.mean_kld;
    j["top1_agreement"] = row.top1_agreement;
    j["greedy_tokens"] = row.greedy_tokens;
  }
  return json;
}

ordered_json ToJson(const NeedlesReport& report) {
  ordered_json json;
  for (const NeedlePrompt& prompt : report.prompts) {
    json["prompts"].push_back({{"length", prompt.length},
                               {"tokens", prompt.context.size() + prompt.question.size()},
                               {"depth", prompt.depth}});
  }
  for (const NeedleRow& row : report.rows) {
    ordered_json& j = json["rows"].emplace_back(CacheJson(row.cache));
    j["question"] = std::string(Name(row.question));
    j["exact"] = row.exact();
    j["of"] = row.answers.size();
    j["answer_nll"] = row.mean_nll();
    for (const NeedleRow::Answer& answer : row.answers) {
      j["exact_by_prompt"].push_back(answer.exact);
      j["nll_by_prompt"].push_back(answer.nll);
    }
  }
  return json;
}

std::string Label(const CacheCase& cache) { return cache.name + " " + std::string(Name(cache.codec)); }

Plot PlotOf(const StreamedReport& report, const std::string& title) {
  PlotPanel panel = {.title = title};
  for (const StreamedRow& row : report.rows) {
    PlotLine& line = panel.lines.emplace_back(PlotLine{.name = Label(row.cache)});
    for (size_t b = 0; b < row.blocks.size(); ++b) {
      line.points.emplace_back((static_cast<double>(b) + 0.5) * static_cast<double>(report.block), row.blocks[b]);
    }
  }
  return {.x_label = "position", .y_label = "NLL, nats a token", .panels = {panel}};
}

// The price of a budget: a line for each policy and codec over what is kept of the prompt.
Plot PlotOf(const AgreementReport& report) {
  PlotPanel nll = {.title = "NLL above the full cache's, nats a token"};
  PlotPanel same = {.title = "share of other likeliest tokens"};
  std::map<std::string, std::map<double, const AgreementRow*>> lines;
  for (const AgreementRow& row : report.result.rows) {
    const double kept = static_cast<double>(row.policy.Kept(report.prompt_tokens));
    const std::string sinks = row.policy.sinks > 0 ? absl::StrCat(", ", row.policy.sinks, " sinks") : "";
    lines[absl::StrCat(std::string(Name(row.policy.kind)), sinks, ", ", std::string(Name(row.cache.codec)))][kept] =
        &row;
  }
  for (const auto& [name, rows] : lines) {
    PlotLine& nll_line = nll.lines.emplace_back(PlotLine{.name = name});
    PlotLine& same_line = same.lines.emplace_back(PlotLine{.name = name});
    for (const auto& [kept, row] : rows) {
      nll_line.points.emplace_back(kept, row->nll - report.result.full_nll);
      same_line.points.emplace_back(kept, 1 - row->top1_agreement);
    }
  }
  return {.x_label = "tokens kept of the prompt", .from_zero = true, .shared_scale = false, .panels = {nll, same}};
}

// The answer's NLL over the fact's depth: a panel for each way to ask and length.
Plot PlotOf(const NeedlesReport& report) {
  Plot plot = {.x_label = "depth of the fact, 1 is next to the question",
               .y_label = "NLL of the answer, nats a token",
               .from_zero = true};
  for (const int64_t length : report.lengths()) {
    for (const QuestionAt at : {QuestionAt::kSeen, QuestionAt::kAfter}) {
      PlotPanel& panel = plot.panels.emplace_back();
      panel.title = absl::StrCat("question ", std::string(Name(at)), ", ", length, " tokens");
      for (const NeedleRow& row : report.rows) {
        if (row.question != at) continue;
        PlotLine& line = panel.lines.emplace_back(PlotLine{.name = Label(row.cache)});
        const auto depths = report.ByDepth(row, length);
        for (size_t d = 0; d < depths.size(); ++d) {
          if (depths[d].prompts == 0) continue;
          line.points.emplace_back((static_cast<double>(d) + 0.5) / static_cast<double>(depths.size()),
                                   depths[d].nll / static_cast<double>(depths[d].prompts));
        }
      }
    }
  }
  return plot;
}

}  // namespace

std::array<NeedlesReport::Depth, NeedlesReport::kDepths> NeedlesReport::ByDepth(const NeedleRow& row,
                                                                                int64_t length) const {
  std::array<Depth, kDepths> depths;
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].length != length) continue;
    Depth& depth = depths[std::min(static_cast<size_t>(prompts[i].depth * kDepths), kDepths - 1)];
    depth.exact += row.answers[i].exact;
    depth.nll += row.answers[i].nll;
    ++depth.prompts;
  }
  return depths;
}

std::set<int64_t> NeedlesReport::lengths() const {
  std::set<int64_t> lengths;
  for (const NeedlePrompt& prompt : prompts) lengths.insert(prompt.length);
  return lengths;
}

ordered_json ToJson(const EvalReport& report) {
  ordered_json json = {{"model", report.model}, {"exact", report.exact}};
  if (report.perplexity) json["perplexity"] = ToJson(*report.perplexity);
  if (report.agreement) json["agreement"] = ToJson(*report.agreement);
  if (report.needles) json["needles"] = ToJson(*report.needles);
  if (report.stream) json["stream"] = ToJson(*report.stream);
  return json;
}

std::vector<std::pair<std::string, Plot>> Plots(const EvalReport& report) {
  std::vector<std::pair<std::string, Plot>> plots;
  if (report.perplexity) plots.emplace_back("perplexity", PlotOf(*report.perplexity, "perplexity by block"));
  if (report.agreement) plots.emplace_back("agreement", PlotOf(*report.agreement));
  if (report.needles) plots.emplace_back("needles", PlotOf(*report.needles));
  if (report.stream) plots.emplace_back("stream", PlotOf(*report.stream, "a long stream"));
  return plots;
}

}  // namespace sluice
