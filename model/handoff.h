// What prefill and decode say to each other around the KV bytes: the hello of a connection and the handoff record of a
// commit. Parsed within bounds and checked whole before anything acts on them; pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/ids.h"
#include "common/proto/handoff.pb.h"
#include "common/status.h"
#include "model/kv_layout.h"

namespace sluice {

inline constexpr size_t kHelloBytesMax = 4096;

// A process's hello, version kKvProtocolVersion; `role` is "prefill" or "decode".
// `wire` are the codecs that it sends or takes, `store` is how it keeps KV.
proto::Hello MakeHello(std::string_view role, Epoch epoch, const std::string& model_hash, const proto::KvLayout& layout,
                       KvCodec store, const std::vector<KvCodec>& wire);
// InvalidArgument where the bytes are too many or no hello.
StatusOr<proto::Hello> ParseHello(std::string_view bytes);
// OK where the two may exchange KV: protocol version, model hash and layout are equal, they share a wire codec, and one
// is a prefill and the other a decode. Else FailedPrecondition with every difference, each with both values.
Status CompareHello(const proto::Hello& mine, const proto::Hello& theirs);

// The codecs that both name, in the order of the enum.
std::vector<KvCodec> SharedWireCodecs(const proto::Hello& mine, const proto::Hello& theirs);

// What a receiver knows of a request before its record comes: from the reservation and the model.
struct HandoffExpectation {
  RequestId request;
  int prompt_tokens = 0;
  int kv_from_token = 0;  // decode has the KV of the positions before it
  int kv_tokens = 0;      // that the prompt's KV ends with: all of them, or the slots that a cache policy keeps
  int n = 1;              // choices that pages were reserved for
  int max_tokens = 1;     // likewise, of each choice
  int vocab_size = 0;
  size_t kept_bytes_max = 0;  // of record.kept
};

// Bytes that no record of the request exceeds.
size_t HandoffRecordBytesMax(const HandoffExpectation& expected);

// Internal (no correct sender makes one) naming the field with both values, where the record contradicts the
// expectation or itself: ids outside the vocabulary, choices not 0..n-1, more or less than one token in one, KV missing
// for a choice that goes on, sums that are not the parts'.
Status Validate(const proto::HandoffRecord& record, const HandoffExpectation& expected);
// Parses at most HandoffRecordBytesMax bytes, and validates.
StatusOr<proto::HandoffRecord> ParseHandoffRecord(std::string_view bytes, const HandoffExpectation& expected);

inline constexpr size_t kTransferResultBytesMax = 4096;

// A TransferResult of `status` for a transfer; the message is cut to fit its bound.
proto::TransferResult MakeTransferResult(RequestId request, ReservationId reservation, Tenure generation,
                                         const Status& status);
// InvalidArgument where the bytes are too many or no result.
StatusOr<proto::TransferResult> ParseTransferResult(std::string_view bytes);
Status ToStatus(const proto::TransferResult& result);

}  // namespace sluice
