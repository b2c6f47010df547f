// How a model's KV is shaped, as a value; and the one place where its sizes are computed: the pool, the kernels, the
// frames, the memory plan and admission all ask here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/proto/handoff.pb.h"
#include "common/status.h"
#include "kernels/codec/codec.h"
#include "model/checkpoint/config.h"

namespace sluice {

// Of each layer: GQA, with MHA and MQA as its ends, keeps K and V, a row for each (token, kv head). MLA keeps one row
// for each token, which is the normalised latent and behind it the rotated shared key; K and V are computed from it.
enum class KvKind : uint8_t { kGqa, kMla };

struct KvLayout {
  KvKind kind = KvKind::kGqa;
  int layers = 0;
  int kv_heads = 0;  // GQA; 0 in MLA
  int head_dim = 0;  // likewise
  int latent = 0;    // MLA; 0 in GQA
  int rope_dim = 0;  // likewise
  RopePairing pairing = RopePairing::kHalf;

  static constexpr KvLayout Gqa(int layers, int kv_heads, int head_dim, RopePairing pairing = RopePairing::kHalf) {
    return {.layers = layers, .kv_heads = kv_heads, .head_dim = head_dim, .pairing = pairing};
  }
  static constexpr KvLayout Mla(int layers, int latent, int rope_dim, RopePairing pairing = RopePairing::kHalf) {
    return {.kind = KvKind::kMla, .layers = layers, .latent = latent, .rope_dim = rope_dim, .pairing = pairing};
  }
  static KvLayout Of(const ModelConfig& config);

  int tensors() const { return kind == KvKind::kGqa ? 2 : 1; }                // a layer's: K and V, or the latents
  int rows_per_token() const { return kind == KvKind::kGqa ? kv_heads : 1; }  // in one tensor
  KvRowShape row() const {
    return kind == KvKind::kGqa ? KvRowShape{.channels = head_dim} : KvRowShape{.channels = latent, .rope = rope_dim};
  }
  bool operator==(const KvLayout&) const = default;
};
// "30 layers of 3 kv heads of 64, interleaved pairs".
std::string ToString(const KvLayout& layout);

// OK where `codec` can hold rows of `layout`; else InvalidArgument with both.
Status CheckCodec(const KvLayout& layout, KvCodec codec);
// The codec of a name, or of "auto": int8 for GQA whose rows it takes, else bf16. Checks that it can hold the layout.
StatusOr<KvCodec> ChooseStoreCodec(std::string_view name, const KvLayout& layout);

// Every codec that can hold the layout: what a process can take off the wire.
std::vector<KvCodec> WireCodecs(const KvLayout& layout);
// Those that a flag names: the one codec, or of "auto" every one. Checks that it can hold the layout.
StatusOr<std::vector<KvCodec>> ChooseWireCodecs(std::string_view name, const KvLayout& layout);

// Bytes of `tokens` tokens in one tensor of one layer: a plane of codes, and behind it a plane of scales.
struct PlaneBytes {
  size_t codes = 0;
  size_t scales = 0;
  size_t total() const { return codes + scales; }
};
PlaneBytes TensorBytes(const KvLayout& layout, KvCodec codec, int64_t tokens);
// Bytes of `slots` tokens in one layer.
size_t LayerBytes(const KvLayout& layout, KvCodec codec, int64_t slots);
// The same over all layers.
size_t Bytes(const KvLayout& layout, KvCodec codec, int64_t slots);

std::string_view Name(RopePairing pairing);  // "half" or "interleaved", also on the wire

// For the handshake: the proto, and a 64-bit hash over every field of it. Page size and store codec are not in it: KV
// travels by token range in a wire codec, so they may differ between the two ends.
proto::KvLayout ToProto(const KvLayout& layout);
uint64_t LayoutHash(const proto::KvLayout& layout);
// OK, or FailedPrecondition naming each field that differs with both values.
Status Compare(const proto::KvLayout& mine, const proto::KvLayout& theirs);

}  // namespace sluice
