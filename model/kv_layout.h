// How a model's KV is shaped, as a value; and the one place where its sizes are computed: the pool, the kernels, the
// frames, the memory plan and admission all ask here. (MLA layouts and compressed codecs join this type.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/proto/handoff.pb.h"
#include "common/status.h"
#include "model/checkpoint/config.h"

namespace sluice {

enum class KvCodec : uint8_t { kF32, kBf16 };
std::string_view Name(KvCodec codec);  // "f32", "bf16"
StatusOr<KvCodec> ParseKvCodec(std::string_view name);

// GQA with MHA and MQA as its ends. Slots of a layer: K then V, each [tokens, kv_heads, head_dim].
struct KvLayout {
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;
  RopePairing pairing = RopePairing::kHalf;

  static KvLayout Of(const ModelConfig& config);
  bool operator==(const KvLayout&) const = default;
};

// Bytes of K and V of `slots` tokens in one layer. Rows are (token, kv head): row bytes times kv_heads.
size_t LayerBytes(const KvLayout& layout, KvCodec codec, int64_t slots);
// The same over all layers.
size_t Bytes(const KvLayout& layout, KvCodec codec, int64_t slots);

// For the handshake: the proto, and a 64-bit hash over every field of it.
proto::KvLayout ToProto(const KvLayout& layout, KvCodec store, int page_tokens);
uint64_t LayoutHash(const proto::KvLayout& layout);
// OK, or FailedPrecondition naming each field that differs with both values.
Status Compare(const proto::KvLayout& mine, const proto::KvLayout& theirs);

}  // namespace sluice
