#include "prefill/admission.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "common/proto/convert.h"

namespace sluice::prefill {

namespace {

Status CheckOurs(const proto::Ticket& ticket, const AdmissionLimits& limits) {
  if (ticket.model_hash() != limits.model_hash)
    return absl::FailedPreconditionError(
        absl::StrCat("decode serves model ", ticket.model_hash(), ", prefill ", limits.model_hash));
  if (ticket.layout_hash() != limits.layout_hash)
    return absl::FailedPreconditionError(absl::StrCat("decode's KV layout hash is ", absl::Hex(ticket.layout_hash()),
                                                      ", prefill's ", absl::Hex(limits.layout_hash)));
  const auto sends = [&limits](const std::string& name) {
    return std::find(limits.wire_codecs.begin(), limits.wire_codecs.end(), name) != limits.wire_codecs.end();
  };
  if (std::none_of(ticket.wire_codecs().begin(), ticket.wire_codecs().end(), sends))
    return absl::FailedPreconditionError(absl::StrCat("decode takes the wire codecs ",
                                                      absl::StrJoin(ticket.wire_codecs(), "|"), ", prefill sends ",
                                                      absl::StrJoin(limits.wire_codecs, "|")));
  return absl::OkStatus();
}

Status CheckTogether(const proto::PrefillRequest& request, const proto::Ticket& ticket) {
  if (ticket.request_id() != request.request_id())
    return absl::InvalidArgumentError(
        absl::StrCat("the ticket is for request ", ticket.request_id(), ", this is ", request.request_id()));
  if (ticket.prompt_tokens() != static_cast<uint32_t>(request.prompt_ids_size()))
    return absl::InvalidArgumentError(absl::StrCat("the ticket is for ", ticket.prompt_tokens(),
                                                   " prompt tokens, the request has ", request.prompt_ids_size()));
  if (ticket.kv_from_token() > ticket.prompt_tokens())
    return absl::InvalidArgumentError(absl::StrCat("decode has the KV before token ", ticket.kv_from_token(),
                                                   ", the prompt has ", ticket.prompt_tokens()));
  if (!ticket.has_policy()) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(FromProto(ticket.policy()).status());
  if (ticket.kv_from_token() > 0)
    return absl::InvalidArgumentError(
        absl::StrCat("decode has the KV before token ", ticket.kv_from_token(), " and wants a choice of all of it"));
  return absl::OkStatus();
}

Status CheckDeadlines(const proto::PrefillRequest& request, const proto::Ticket& ticket, absl::Time now) {
  if (request.deadline_unix_ms() <= 0) return absl::InvalidArgumentError("the request has no deadline");
  if (absl::FromUnixMillis(request.deadline_unix_ms()) <= now)
    return absl::DeadlineExceededError("the request's time is over");
  if (absl::FromUnixMillis(ticket.deadline_unix_ms()) <= now) return absl::AbortedError("the reservation has expired");
  return absl::OkStatus();
}

Status CheckPrompt(const proto::PrefillRequest& request, const AdmissionLimits& limits) {
  if (request.prompt_ids_size() == 0) return absl::InvalidArgumentError("the prompt is empty");
  if (request.prompt_ids_size() + int64_t{1} > limits.context_tokens_max)
    return absl::OutOfRangeError(absl::StrCat("the prompt has ", request.prompt_ids_size(),
                                              " tokens, the model's context of ", limits.context_tokens_max,
                                              " leaves no room for an answer"));
  for (const TokenId id : request.prompt_ids()) {
    if (id < 0 || id >= limits.vocab_size)
      return absl::InvalidArgumentError(
          absl::StrCat("prompt token ", id, " is outside of the vocabulary of ", limits.vocab_size));
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<proto::Ticket> Admit(const proto::PrefillRequest& request, const AdmissionLimits& limits,
                              const ClusterKey& key, absl::Time now) {
  SLUICE_ASSIGN_OR_RETURN(const proto::Ticket ticket, Open(request.ticket(), key));
  SLUICE_RETURN_IF_ERROR(CheckOurs(ticket, limits));
  SLUICE_RETURN_IF_ERROR(CheckTogether(request, ticket));
  SLUICE_RETURN_IF_ERROR(CheckDeadlines(request, ticket, now));
  SLUICE_RETURN_IF_ERROR(CheckPrompt(request, limits));
  SLUICE_RETURN_IF_ERROR(FromProto(request.sampling()).Validate(limits.vocab_size));
  if (!limits.has_tokenizer && request.sampling().stop_strings_size() > 0)
    return absl::InvalidArgumentError("stop strings need a tokenizer, which this model does not bring");
  return ticket;
}

}  // namespace sluice::prefill
