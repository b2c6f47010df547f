// The plan as tables.
#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/plan_report.h"
#include "cli/text_table.h"

namespace sluice {
namespace {

std::string Short(double value) { return absl::StrFormat(value < 1e4 ? "%.4g" : "%.0f", value); }
std::string Gb(int64_t bytes) { return Short(static_cast<double>(bytes) / 1e9); }
std::string Gib(int64_t bytes) { return Short(static_cast<double>(bytes) / double{1 << 30}); }
std::string GbAndGib(int64_t bytes) { return absl::StrCat(Gb(bytes), " GB (", Gib(bytes), " GiB)"); }

const CodecSize& SizeOf(const KvPlan& plan, KvCodec codec) {
  return *std::find_if(plan.codecs.begin(), plan.codecs.end(),
                       [&](const CodecSize& size) { return size.codec == codec; });
}

// Rows of one size, which differ in nothing but the codec's name, as one line: "fp8, int8".
struct Line {
  std::string codecs;
  int64_t bytes_per_token = 0;
  const KvPlanRow* row = nullptr;
};
std::vector<Line> Lines(const KvPlan& plan, const ContextPlan& context) {
  std::vector<Line> lines;
  for (const KvPlanRow& row : context.rows) {
    const std::string codec(Name(row.codec));
    const int64_t bytes = SizeOf(plan, row.codec).bytes_per_token;
    const auto same = std::find_if(lines.begin(), lines.end(), [&](const Line& line) {
      return line.row->policy == row.policy && line.bytes_per_token == bytes;
    });
    if (same != lines.end()) {
      absl::StrAppend(&same->codecs, ", ", codec);
    } else {
      lines.push_back({codec, bytes, &row});
    }
  }
  return lines;
}

std::string MhaName(const PlannedModel& model) { return model.is_mla() ? "heads expanded" : "as MHA"; }

std::string Shape(const PlannedModel& model) {
  const KvLayout& l = model.layout;
  const std::string heads = absl::StrCat(model.scheme(), ", ", l.layers, " layers, ", model.heads, " query heads, ");
  if (model.is_mla()) return absl::StrCat(heads, "a latent of ", l.latent, " and a shared key of ", l.rope_dim);
  return absl::StrCat(heads, l.kv_heads, " KV heads of ", l.head_dim);
}

void PrintModel(const PlanReport& report, std::ostream& out) {
  out << "model    " << report.source << "\nshape    " << Shape(report.model) << "\n";
  const int64_t weights = report.weights_bytes;
  out << "weights  " << (weights > 0 ? GbAndGib(weights) : "not given") << "\n";
  if (report.scratch_bytes > 0) out << "scratch  " << GbAndGib(report.scratch_bytes) << "\n";
  if (!report.options.device_bytes.has_value()) return;
  const int64_t device = *report.options.device_bytes;
  out << "device   " << GbAndGib(device);
  if (report.options.model_bytes > device) {
    out << ", which does not hold the model\n";
  } else {
    out << ", of which " << GbAndGib(device - report.options.model_bytes) << " are for KV\n";
  }
}

void PrintFormula(const PlanReport& report, std::ostream& out) {
  const PlanFormula formula = Formula(report);
  out << "\n" << formula.text << "\n";
  for (const PlanFactor& factor : formula.factors) out << absl::StrFormat("  %-5s%s\n", factor.symbol, factor.meaning);
  out << "  for example, bf16: " << formula.example << "\n";
}

// The cells of a size: bytes of a request in both units, its part of MHA's, the batch.
void AddSize(int64_t bytes, int64_t batch_bytes, int64_t mha_bytes, std::vector<std::string>& cells) {
  const double part = static_cast<double>(bytes) / static_cast<double>(mha_bytes);
  cells.insert(cells.end(),
               {Gb(bytes), Gib(bytes), mha_bytes > 0 ? absl::StrFormat("%.1f %%", part * 100) : "-", Gb(batch_bytes)});
}

void PrintMemory(const PlanReport& report, std::ostream& out) {
  const KvPlanOptions& options = report.options;
  const bool has_device = options.device_bytes.has_value();
  out << "\nKV memory (GB is 10^9 bytes, GiB is 2^30; waste is what stays empty of pages of " << options.page_tokens
      << " slots" << (has_device ? "; requests are those that fit" : "") << ")\n";
  std::vector<std::string> heads = {"context", "scheme",        "codec", "bytes/token",
                                    "slots",   "a request, GB", "GiB",   "of MHA"};
  heads.push_back(absl::StrCat("b = ", options.batch, ", GB"));
  heads.push_back("waste");
  if (has_device) heads.push_back("requests");
  TextTable table(3, heads);
  for (const ContextPlan& context : report.plan.contexts) {
    const std::string tokens = absl::StrCat(context.context_tokens);
    if (context.mha_bytes > 0) {
      std::vector<std::string> cells = {tokens, MhaName(report.model), "bf16",
                                        absl::StrCat(report.plan.mha_bytes_per_token), tokens};
      AddSize(context.mha_bytes, context.mha_bytes * options.batch, context.mha_bytes, cells);
      table.Add(cells);
    }
    for (const Line& line : Lines(report.plan, context)) {
      const KvPlanRow& row = *line.row;
      std::vector<std::string> cells = {tokens, absl::StrCat(report.model.scheme(), ", ", report.policies[row.policy]),
                                        line.codecs, absl::StrCat(line.bytes_per_token), absl::StrCat(row.slots)};
      AddSize(row.request_bytes, row.batch_bytes, context.mha_bytes, cells);
      const double used = static_cast<double>(row.slots) / static_cast<double>(row.page_slots);
      cells.push_back(absl::StrFormat("%.2f %%", (1 - used) * 100));
      if (has_device) cells.push_back(absl::StrCat(*row.requests));
      table.Add(cells);
    }
  }
  table.Print(out);
  for (const ContextPlan& context : report.plan.contexts) {
    if (report.context_tokens_max == 0 || context.context_tokens <= report.context_tokens_max) continue;
    out << "note: " << context.context_tokens << " tokens are more than the model's context of "
        << report.context_tokens_max << ": arithmetic, a service takes no such prompt\n";
  }
}

void PrintTransfer(const PlanReport& report, std::ostream& out) {
  if (!report.options.link_bytes_per_s.has_value()) return;
  const bool has_q = report.options.prefill_tokens_per_s.has_value();
  const double link = *report.options.link_bytes_per_s;
  out << absl::StrFormat("\nTransfer of a prompt over %.6g GB/s (%.6g Gbit/s)", link / 1e9, link / 1.25e8);
  if (has_q) out << absl::StrFormat(", prefill at %.6g tokens/s", *report.options.prefill_tokens_per_s);
  out << "\nq = link bytes/s over (KV bytes/token x prefill tokens/s)";
  out << (has_q ? "; what sending adds to prefill, begun after it or layer by layer\n"
                : "; q is 1 at that rate of prefill\n");
  std::vector<std::string> heads = {"context", "policy", "codec", "tokens", "GB", "seconds"};
  const std::vector<std::string> more = has_q ? std::vector<std::string>{"q", "after prefill, s", "per layer, s"}
                                              : std::vector<std::string>{"q = 1 at, tokens/s"};
  heads.insert(heads.end(), more.begin(), more.end());
  TextTable table(3, heads);
  for (const ContextPlan& context : report.plan.contexts) {
    for (const Line& line : Lines(report.plan, context)) {
      const TransferPlan& transfer = *line.row->transfer;
      std::vector<std::string> cells = {absl::StrCat(context.context_tokens),
                                        report.policies[line.row->policy],
                                        line.codecs,
                                        absl::StrCat(transfer.tokens),
                                        Gb(transfer.bytes),
                                        Short(transfer.seconds)};
      if (has_q) {
        cells.insert(cells.end(),
                     {Short(*transfer.q), Short(transfer.late_after_prefill_s), Short(transfer.late_per_layer_s)});
      } else {
        cells.push_back(Short(static_cast<double>(context.context_tokens) / transfer.seconds));
      }
      table.Add(cells);
    }
  }
  table.Print(out);
  if (!has_q) return;
  out << "\n";
  for (const ContextPlan& context : report.plan.contexts) {
    out << "advice, context " << context.context_tokens << ": " << AdviceText(report, context) << "\n";
  }
}

void PrintAgainst(const PlanReport& report, std::ostream& out) {
  if (!report.against_plan.has_value()) return;
  out << "\nAgainst " << report.against_source << "\n";
  TextTable table(0, {"context", "b", "T = s x b", "GB there", "GiB", "GB here", "GiB", "ratio", "saved"});
  for (const AgainstRow& row : AgainstRows(report)) {
    const double ratio = static_cast<double>(row.there_bytes) / static_cast<double>(row.here_bytes);
    table.Add({absl::StrCat(row.context_tokens), absl::StrCat(report.options.batch),
               absl::StrCat(row.context_tokens * report.options.batch), Gb(row.there_bytes), Gib(row.there_bytes),
               Gb(row.here_bytes), Gib(row.here_bytes), absl::StrFormat("%.2f", ratio),
               absl::StrFormat("%.2f %%", (1 - 1 / ratio) * 100)});
  }
  table.Print(out);
  out << "note: " << AgainstNote(report) << "\n";
}

}  // namespace

void PrintPlan(const PlanReport& report, std::ostream& out) {
  PrintModel(report, out);
  PrintFormula(report, out);
  PrintMemory(report, out);
  PrintTransfer(report, out);
  PrintAgainst(report, out);
}

}  // namespace sluice
