#include "cli/plan_report.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace sluice {
namespace {

std::string BytesPerElement(const KvPlan& plan) {
  return absl::StrJoin(plan.codecs, ", ", [](std::string* out, const CodecSize& codec) {
    out->append(absl::StrFormat("%s %.7g", std::string(Name(codec.codec)), codec.bytes_per_element));
  });
}

// bf16 with every token kept; a plan always has it, first of its policies.
const KvPlanRow& PlainRow(const ContextPlan& context) {
  return *std::find_if(context.rows.begin(), context.rows.end(),
                       [](const KvPlanRow& row) { return row.codec == KvCodec::kBf16; });
}

std::string Percent(double part) { return absl::StrFormat("%.3g %%", part * 100); }

// "int8", and where not every token is sent "int8 of what sink-window 4+1020 keeps".
std::string What(const PlanReport& report, const KvPlanRow& row) {
  const std::string codec(Name(row.codec));
  if (row.policy == 0) return codec;
  return absl::StrCat(codec, " of what ", report.policies[row.policy], " keeps");
}

std::string PlainText(double q) {
  return absl::StrFormat("q is %.3g in bf16: sent after prefill, KV adds %s to it", q, Percent(1 / q));
}

std::string Unhidden(double q) {
  return absl::StrFormat("q is %.3g in bf16: the link needs %.3g times as long as prefill, and no overlap hides that",
                         q, 1 / q);
}

}  // namespace

PlanFormula Formula(const PlanReport& report) {
  const KvLayout& l = report.model.layout;
  const KvPlanRow& row = PlainRow(report.plan.contexts[0]);
  PlanFormula formula;
  const bool is_mla = report.model.is_mla();
  formula.text = is_mla ? "bytes = B x L x (d_c + d_R) x s x b" : "bytes = 2 x B x L x H_kv x d x s x b";
  if (!is_mla) formula.factors.push_back({"2", "K and V"});
  formula.factors.push_back({"B", absl::StrCat("bytes an element, scales counted in: ", BytesPerElement(report.plan))});
  formula.factors.push_back({"L", absl::StrCat(l.layers, " layers")});
  if (is_mla) {
    formula.factors.push_back(
        {"d_c", absl::StrCat(l.latent, " channels of the latent, which is K and V of all heads")});
    formula.factors.push_back({"d_R", absl::StrCat(l.rope_dim, " channels of the shared rotated key")});
  } else {
    formula.factors.push_back(
        {"H_kv", absl::StrCat(l.kv_heads, " KV heads (of ", report.model.heads, " query heads)")});
    formula.factors.push_back({"d", absl::StrCat(l.head_dim, " channels of a head")});
  }
  formula.factors.push_back(
      {"s", "slots of a request: its tokens, or what a policy keeps and, where steps let tokens go, one more"});
  formula.factors.push_back({"b", absl::StrCat(report.options.batch, " requests at once")});
  const std::string tail = absl::StrCat(row.slots, " x ", report.options.batch, " = ", row.batch_bytes);
  formula.example = is_mla ? absl::StrCat("2 x ", l.layers, " x (", l.latent, " + ", l.rope_dim, ") x ", tail)
                           : absl::StrCat("2 x 2 x ", l.layers, " x ", l.kv_heads, " x ", l.head_dim, " x ", tail);
  return formula;
}

std::string_view Name(TransferMeans means) {
  switch (means) {
    case TransferMeans::kAfterPrefill:
      return "after_prefill";
    case TransferMeans::kPerLayer:
      return "per_layer";
    case TransferMeans::kPerLayerCompressed:
      return "per_layer_compressed";
    case TransferMeans::kCodecRequired:
      return "codec_required";
    case TransferMeans::kPolicyRequired:
      return "policy_required";
    case TransferMeans::kPrefillWhereDecoded:
      return "prefill_where_decoded";
  }
  return "";
}

std::string AdviceText(const PlanReport& report, const ContextPlan& context) {
  const TransferAdvice advice = Advise(context);
  const TransferPlan& best = *advice.row->transfer;
  const std::string what = What(report, *advice.row);
  switch (advice.means) {
    case TransferMeans::kAfterPrefill:
      return PlainText(advice.plain_q) + "; neither overlap nor a codec is needed";
    case TransferMeans::kPerLayer:
      return PlainText(advice.plain_q) + absl::StrFormat(", sent per layer %s; a codec is not needed",
                                                         Percent(best.late_per_layer_s / best.prefill_seconds));
    case TransferMeans::kPerLayerCompressed:
      return PlainText(advice.plain_q) +
             absl::StrFormat("; overlap per layer and compress: %s lifts q to %.3g, and per layer it adds %s", what,
                             *best.q, Percent(best.late_per_layer_s / best.prefill_seconds));
    case TransferMeans::kCodecRequired:
      return Unhidden(advice.plain_q) + absl::StrFormat("; %s lifts q to %.3g: send it per layer", what, *best.q);
    case TransferMeans::kPolicyRequired:
      return Unhidden(advice.plain_q) +
             absl::StrFormat("; no codec lifts q to 1 while every token is sent; %s lifts q to %.3g: send it per layer",
                             what, *best.q);
    case TransferMeans::kPrefillWhereDecoded:
      return Unhidden(advice.plain_q) +
             absl::StrFormat(
                 "; the best here, %s, has q %.3g: prefill where it is decoded, or keep at most %d of %d tokens", what,
                 *best.q, static_cast<int64_t>(*best.q * static_cast<double>(best.tokens)), context.context_tokens);
  }
  return "";
}

std::vector<AgainstRow> AgainstRows(const PlanReport& report) {
  std::vector<AgainstRow> rows;
  for (size_t i = 0; i < report.plan.contexts.size(); ++i) {
    rows.push_back({.context_tokens = report.plan.contexts[i].context_tokens,
                    .there_bytes = PlainRow(report.against_plan->contexts[i]).batch_bytes,
                    .here_bytes = PlainRow(report.plan.contexts[i]).batch_bytes});
  }
  return rows;
}

std::string AgainstNote(const PlanReport& report) {
  return absl::StrCat("this compares two different models, ", report.model.scheme(), " with ", report.against.scheme(),
                      ", each with bf16 KV of every token: a ratio of their memory, not of one model before and after");
}

}  // namespace sluice
