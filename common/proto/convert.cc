#include "common/proto/convert.h"

namespace sluice {

proto::SamplingParams ToProto(const SamplingParams& params) {
  proto::SamplingParams m;
  m.set_temperature(params.temperature);
  m.set_top_k(params.top_k);
  m.set_top_p(params.top_p);
  m.set_min_p(params.min_p);
  m.set_repetition_penalty(params.repetition_penalty);
  m.set_presence_penalty(params.presence_penalty);
  m.set_frequency_penalty(params.frequency_penalty);
  for (const LogitBias& b : params.logit_bias) {
    proto::LogitBias* out = m.add_logit_bias();
    out->set_token(b.token);
    out->set_bias(b.bias);
  }
  m.set_seed(params.seed);
  m.set_n(params.n);
  m.set_max_tokens(params.max_tokens);
  m.set_min_tokens(params.min_tokens);
  m.set_ignore_eos(params.ignore_eos);
  m.mutable_stop_token_ids()->Assign(params.stop_token_ids.begin(), params.stop_token_ids.end());
  m.mutable_stop_strings()->Assign(params.stop_strings.begin(), params.stop_strings.end());
  m.set_top_logprobs(params.top_logprobs);
  m.set_logprobs(params.logprobs);
  return m;
}

SamplingParams FromProto(const proto::SamplingParams& m) {
  SamplingParams p;
  p.temperature = m.temperature();
  p.top_k = m.top_k();
  p.top_p = m.top_p();
  p.min_p = m.min_p();
  p.repetition_penalty = m.repetition_penalty();
  p.presence_penalty = m.presence_penalty();
  p.frequency_penalty = m.frequency_penalty();
  for (const proto::LogitBias& b : m.logit_bias()) p.logit_bias.push_back({b.token(), b.bias()});
  p.seed = m.seed();
  p.n = m.n();
  p.max_tokens = m.max_tokens();
  p.min_tokens = m.min_tokens();
  p.ignore_eos = m.ignore_eos();
  p.stop_token_ids.assign(m.stop_token_ids().begin(), m.stop_token_ids().end());
  p.stop_strings.assign(m.stop_strings().begin(), m.stop_strings().end());
  p.top_logprobs = m.top_logprobs();
  p.logprobs = m.logprobs();
  return p;
}

proto::CachePolicySpec ToProto(const CachePolicySpec& spec) {
  proto::CachePolicySpec m;
  m.set_kind(std::string(Name(spec.kind)));
  if (spec.budget) m.set_budget(*spec.budget);
  if (spec.budget_share) m.set_budget_share(*spec.budget_share);
  if (spec.sinks) m.set_sinks(*spec.sinks);
  if (spec.window) m.set_window(*spec.window);
  if (spec.decay) m.set_decay(*spec.decay);
  m.set_by_age(spec.by_age);
  return m;
}

StatusOr<CachePolicySpec> FromProto(const proto::CachePolicySpec& m) {
  CachePolicySpec spec;
  SLUICE_ASSIGN_OR_RETURN(spec.kind, ParseCachePolicyKind(m.kind()));
  if (m.has_budget()) spec.budget = m.budget();
  if (m.has_budget_share()) spec.budget_share = m.budget_share();
  if (m.has_sinks()) spec.sinks = m.sinks();
  if (m.has_window()) spec.window = m.window();
  if (m.has_decay()) spec.decay = m.decay();
  spec.by_age = m.by_age();
  SLUICE_RETURN_IF_ERROR(Validate(spec));
  return spec;
}

proto::CachePolicy ToProto(const CachePolicy& policy) {
  proto::CachePolicy m;
  m.set_kind(std::string(Name(policy.kind)));
  m.set_budget(policy.budget);
  m.set_sinks(policy.sinks);
  m.set_window(policy.window);
  m.set_pool(policy.pool);
  m.set_decay(policy.decay);
  m.set_by_age(policy.by_age);
  return m;
}

StatusOr<CachePolicy> FromProto(const proto::CachePolicy& m) {
  CachePolicy policy;
  SLUICE_ASSIGN_OR_RETURN(policy.kind, ParseCachePolicyKind(m.kind()));
  policy.budget = m.budget();
  policy.sinks = m.sinks();
  policy.window = m.window();
  policy.pool = m.pool();
  policy.decay = m.decay();
  policy.by_age = m.by_age();
  SLUICE_RETURN_IF_ERROR(Validate(policy));
  return policy;
}

}  // namespace sluice
