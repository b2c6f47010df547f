// What is checked of a request before it may cost anything: the seal of its ticket, that ticket and request belong
// together and to this model, and that every field is within the model's bounds. Pure; called by gRPC threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/proto/worker.pb.h"
#include "common/status.h"
#include "model/ticket.h"

namespace sluice::prefill {

struct AdmissionLimits {
  std::string model_hash;
  uint64_t layout_hash = 0;
  std::vector<std::string> wire_codecs;  // that this process sends
  int vocab_size = 0;
  int64_t context_tokens_max = 0;
  bool has_tokenizer = false;  // else stop strings cannot be watched for
};

// The opened ticket. Unauthenticated for a wrong seal; FailedPrecondition, naming both values, for another model,
// layout or codec; DeadlineExceeded where the request, Aborted where the reservation is over; InvalidArgument and
// OutOfRange for the request.
StatusOr<proto::Ticket> Admit(const proto::PrefillRequest& request, const AdmissionLimits& limits,
                              const ClusterKey& key, absl::Time now);

}  // namespace sluice::prefill
