// The tables of `sluice eval`.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "cli/eval_report.h"
#include "cli/text_table.h"

namespace sluice {
namespace {

std::string Perplexity(double nll) { return absl::StrFormat("%.4g", std::exp(nll)); }

std::string Budget(const CachePolicy& policy) {
  return policy.kind == CachePolicyKind::kFull ? "-" : absl::StrCat(policy.budget);
}

std::string CodecName(const CacheCase& cache) { return std::string(Name(cache.codec)); }

std::vector<std::string> NeedleCells(const NeedlesReport& report, const NeedleRow& row, int64_t length) {
  std::vector<std::string> cells = {row.cache.name, CodecName(row.cache), std::string(Name(row.question)),
                                    absl::StrCat(length)};
  NeedlesReport::Depth all;
  for (const NeedlesReport::Depth& depth : report.ByDepth(row, length)) {
    cells.push_back(depth.prompts == 0 ? "-" : absl::StrCat(depth.exact, "/", depth.prompts));
    all.exact += depth.exact;
    all.prompts += depth.prompts;
    all.nll += depth.nll;
  }
  cells.push_back(absl::StrCat(all.exact, "/", all.prompts));
  cells.push_back(absl::StrFormat("%.2f", all.nll / static_cast<double>(all.prompts)));
  return cells;
}

}  // namespace

void Print(const StreamedReport& report, const std::string& title, std::ostream& out) {
  out << title << ": " << report.texts << (report.texts == 1 ? " text of " : " texts of ") << report.tokens
      << " tokens, each token through the cache; NLL in nats a token, perplexity of all and by " << report.block
      << " tokens\n";
  std::vector<std::string> heads = {"cache", "codec", "kept", "tokens", "NLL", "perplexity"};
  size_t blocks = 0;
  for (const StreamedRow& row : report.rows) blocks = std::max(blocks, row.blocks.size());
  for (size_t b = 0; b < blocks; ++b) heads.push_back(absl::StrCat(static_cast<int64_t>(b) * report.block, "-"));
  TextTable table(2, heads);
  for (const StreamedRow& row : report.rows) {
    std::vector<std::string> cells = {row.cache.name,
                                      CodecName(row.cache),
                                      Budget(row.policy),
                                      absl::StrCat(row.tokens),
                                      absl::StrFormat("%.4f", row.nll),
                                      Perplexity(row.nll)};
    for (const double block : row.blocks) cells.push_back(Perplexity(block));
    cells.resize(heads.size());
    table.Add(std::move(cells));
  }
  table.Print(out);
  out << "\n";
}

void Print(const AgreementReport& report, std::ostream& out) {
  out << "agreement with the full cache in f32, whose NLL is " << absl::StrFormat("%.4f", report.result.full_nll)
      << ": " << report.texts << (report.texts == 1 ? " prompt of " : " prompts of ") << report.prompt_tokens
      << " tokens, pruned once, then " << report.continuation << " tokens of text; greedy: tokens drawn, of "
      << report.greedy << ", before the first other one\n";
  TextTable table(2, {"cache", "codec", "kept", "NLL", "difference", "mean KL", "same top-1", "greedy"});
  for (const AgreementRow& row : report.result.rows) {
    table.Add({row.cache.name, CodecName(row.cache), Budget(row.policy), absl::StrFormat("%.4f", row.nll),
               absl::StrFormat("%+.4f", row.nll - report.result.full_nll), absl::StrFormat("%.3g", row.mean_kld),
               absl::StrFormat("%.1f %%", 100 * row.top1_agreement), absl::StrFormat("%.1f", row.greedy_tokens)});
  }
  table.Print(out);
  out << "\n";
}

void Print(const NeedlesReport& report, std::ostream& out) {
  out << "needles: facts of which every token is predicted, by their depth in the context; the question is in the "
         "prompt that is pruned (seen), or comes after; NLL of the answer's tokens\n";
  TextTable table(
      3, {"cache", "codec", "question", "tokens", "0-20%", "20-40%", "40-60%", "60-80%", "80-100%", "all", "NLL"});
  for (const int64_t length : report.lengths()) {
    for (const NeedleRow& row : report.rows) table.Add(NeedleCells(report, row, length));
  }
  table.Print(out);
  out << "\n";
}

}  // namespace sluice
