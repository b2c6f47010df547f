// The plan as JSON: numbers unrounded, bytes as integers.
#include "cli/plan_report.h"

namespace sluice {
namespace {

using nlohmann::ordered_json;

ordered_json ModelJson(const std::string& source, const PlannedModel& model) {
  const KvLayout& l = model.layout;
  ordered_json json = {{"source", source}, {"scheme", model.scheme()}, {"layers", l.layers}, {"heads", model.heads}};
  if (model.is_mla()) {
    json.update({{"latent", l.latent}, {"rope_dim", l.rope_dim}});
    if (model.nope_dim > 0) json.update({{"nope_dim", model.nope_dim}, {"value_dim", model.value_dim}});
  } else {
    json.update({{"kv_heads", l.kv_heads}, {"head_dim", l.head_dim}});
  }
  return json;
}

ordered_json FormulaJson(const PlanReport& report) {
  const PlanFormula formula = Formula(report);
  ordered_json factors = ordered_json::object();
  for (const PlanFactor& factor : formula.factors) factors[factor.symbol] = factor.meaning;
  return {{"text", formula.text}, {"factors", factors}, {"example_bf16", formula.example}};
}

ordered_json TransferJson(const TransferPlan& transfer) {
  ordered_json json = {{"tokens", transfer.tokens}, {"bytes", transfer.bytes}, {"seconds", transfer.seconds}};
  if (transfer.q.has_value()) {
    json.update({{"q", *transfer.q},
                 {"prefill_seconds", transfer.prefill_seconds},
                 {"late_after_prefill_seconds", transfer.late_after_prefill_s},
                 {"late_per_layer_seconds", transfer.late_per_layer_s}});
  }
  return json;
}

ordered_json ContextJson(const PlanReport& report, const ContextPlan& context) {
  ordered_json json = {{"context_tokens", context.context_tokens}};
  if (context.mha_bytes > 0) json["mha_bf16_bytes"] = context.mha_bytes;
  ordered_json rows = ordered_json::array();
  for (const KvPlanRow& row : context.rows) {
    ordered_json item = {{"policy", report.policies[row.policy]},
                         {"codec", Name(row.codec)},
                         {"slots", row.slots},
                         {"page_slots", row.page_slots},
                         {"request_bytes", row.request_bytes},
                         {"kept_slots_bytes", row.kept_slots_bytes},
                         {"batch_bytes", row.batch_bytes}};
    if (row.requests.has_value()) item["requests"] = *row.requests;
    if (row.transfer.has_value()) item["transfer"] = TransferJson(*row.transfer);
    rows.push_back(std::move(item));
  }
  json["rows"] = std::move(rows);
  if (report.options.link_bytes_per_s.has_value() && report.options.prefill_tokens_per_s.has_value()) {
    const TransferAdvice advice = Advise(context);
    json["advice"] = {{"means", Name(advice.means)},
                      {"codec", Name(advice.row->codec)},
                      {"policy", report.policies[advice.row->policy]},
                      {"q_bf16", advice.plain_q},
                      {"q", *advice.row->transfer->q},
                      {"text", AdviceText(report, context)}};
  }
  return json;
}

ordered_json AgainstJson(const PlanReport& report) {
  ordered_json contexts = ordered_json::array();
  for (const AgainstRow& row : AgainstRows(report)) {
    contexts.push_back({{"context_tokens", row.context_tokens},
                        {"slots", row.context_tokens * report.options.batch},
                        {"there_bytes", row.there_bytes},
                        {"here_bytes", row.here_bytes},
                        {"ratio", static_cast<double>(row.there_bytes) / static_cast<double>(row.here_bytes)}});
  }
  return {{"model", ModelJson(report.against_source, report.against)},
          {"contexts", contexts},
          {"note", AgainstNote(report)}};
}

}  // namespace

ordered_json PlanJson(const PlanReport& report) {
  const KvPlanOptions& options = report.options;
  ordered_json json = {{"model", ModelJson(report.source, report.model)},
                       {"formula", FormulaJson(report)},
                       {"batch", options.batch},
                       {"page_tokens", options.page_tokens}};
  if (report.weights_bytes > 0) json["weights_bytes"] = report.weights_bytes;
  if (report.scratch_bytes > 0) json["scratch_bytes"] = report.scratch_bytes;
  if (options.device_bytes.has_value()) json["device_bytes"] = *options.device_bytes;
  if (options.link_bytes_per_s.has_value()) json["link_bytes_per_second"] = *options.link_bytes_per_s;
  if (options.prefill_tokens_per_s.has_value()) json["prefill_tokens_per_second"] = *options.prefill_tokens_per_s;
  if (report.plan.mha_bytes_per_token > 0) json["mha_bf16_bytes_per_token"] = report.plan.mha_bytes_per_token;
  ordered_json codecs = ordered_json::object();
  for (const CodecSize& codec : report.plan.codecs) {
    codecs[std::string(Name(codec.codec))] = {{"bytes_per_token", codec.bytes_per_token},
                                              {"bytes_per_element", codec.bytes_per_element}};
  }
  json["codecs"] = std::move(codecs);
  ordered_json contexts = ordered_json::array();
  for (const ContextPlan& context : report.plan.contexts) contexts.push_back(ContextJson(report, context));
  json["contexts"] = std::move(contexts);
  if (report.against_plan.has_value()) json["against"] = AgainstJson(report);
  return json;
}

}  // namespace sluice
