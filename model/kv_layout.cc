#include "model/kv_layout.h"

#include "absl/strings/str_join.h"

namespace sluice {

std::string_view Name(RopePairing pairing) { return pairing == RopePairing::kInterleaved ? "interleaved" : "half"; }

namespace {

// Every field of the message, named, in one order: what the hash runs over and what Compare walks.
std::vector<std::pair<std::string_view, std::string>> Fields(const proto::KvLayout& layout) {
  return {{"kind", layout.kind()},
          {"layers", absl::StrCat(layout.layers())},
          {"kv_heads", absl::StrCat(layout.kv_heads())},
          {"head_dim", absl::StrCat(layout.head_dim())},
          {"latent", absl::StrCat(layout.latent())},
          {"rope_dim", absl::StrCat(layout.rope_dim())},
          {"rope_pairing", layout.rope_pairing()},
          {"tensor_parallel", absl::StrCat(layout.tensor_parallel())}};
}

}  // namespace

KvLayout KvLayout::Of(const ModelConfig& config) {
  if (config.mla) return Mla(config.layers, config.mla->latent, config.mla->rope_dim, config.rope.pairing);
  return Gqa(config.layers, config.kv_heads, config.head_dim, config.rope.pairing);
}

std::string ToString(const KvLayout& layout) {
  const std::string pairs = absl::StrCat(", ", std::string(Name(layout.pairing)), " pairs");
  if (layout.kind == KvKind::kMla)
    return absl::StrCat(layout.layers, " layers of a latent of ", layout.latent, " + ", layout.rope_dim, pairs);
  return absl::StrCat(layout.layers, " layers of ", layout.kv_heads, " kv heads of ", layout.head_dim, pairs);
}

Status CheckCodec(const KvLayout& layout, KvCodec codec) { return Info(codec).check(layout.row()); }

StatusOr<KvCodec> ChooseStoreCodec(std::string_view name, const KvLayout& layout) {
  if (name == "auto") {
    const bool rotates = layout.kind == KvKind::kGqa && CheckCodec(layout, KvCodec::kInt8).ok();
    return rotates ? KvCodec::kInt8 : KvCodec::kBf16;
  }
  SLUICE_ASSIGN_OR_RETURN(const KvCodec codec, ParseKvCodec(name));
  SLUICE_RETURN_IF_ERROR(CheckCodec(layout, codec));
  return codec;
}

std::vector<KvCodec> WireCodecs(const KvLayout& layout) {
  std::vector<KvCodec> codecs;
  for (const KvCodecInfo& info : KvCodecs()) {
    if (info.check(layout.row()).ok()) codecs.push_back(info.codec);
  }
  return codecs;
}

StatusOr<std::vector<KvCodec>> ChooseWireCodecs(std::string_view name, const KvLayout& layout) {
  if (name == "auto") return WireCodecs(layout);
  SLUICE_ASSIGN_OR_RETURN(const KvCodec codec, ParseKvCodec(name));
  SLUICE_RETURN_IF_ERROR(CheckCodec(layout, codec));
  return std::vector<KvCodec>{codec};
}

// A row is one (token, kv head): codecs that keep something beside the codes keep it per row, so sizes are counted in
// rows and never from the elements of several heads together.
PlaneBytes TensorBytes(const KvLayout& layout, KvCodec codec, int64_t tokens) {
  const KvCodecInfo& info = Info(codec);
  const size_t rows = static_cast<size_t>(layout.rows_per_token()) * static_cast<size_t>(tokens);
  return {.codes = info.code_bytes(layout.row()) * rows, .scales = info.scale_bytes(layout.row()) * rows};
}

size_t LayerBytes(const KvLayout& layout, KvCodec codec, int64_t slots) {
  return static_cast<size_t>(layout.tensors()) * TensorBytes(layout, codec, slots).total();
}

size_t Bytes(const KvLayout& layout, KvCodec codec, int64_t slots) {
  return LayerBytes(layout, codec, slots) * static_cast<size_t>(layout.layers);
}

proto::KvLayout ToProto(const KvLayout& layout) {
  proto::KvLayout message;
  message.set_kind(layout.kind == KvKind::kGqa ? "gqa" : "mla");
  message.set_layers(static_cast<uint32_t>(layout.layers));
  message.set_kv_heads(static_cast<uint32_t>(layout.kv_heads));
  message.set_head_dim(static_cast<uint32_t>(layout.head_dim));
  message.set_latent(static_cast<uint32_t>(layout.latent));
  message.set_rope_dim(static_cast<uint32_t>(layout.rope_dim));
  message.set_rope_pairing(std::string(Name(layout.pairing)));
  message.set_tensor_parallel(1);
  return message;
}

// FNV-1a: the value travels and is compared on other machines, so it must not depend on a library's hash or on how a
// protobuf release serialises.
uint64_t LayoutHash(const proto::KvLayout& layout) {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&hash](std::string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
    hash = (hash ^ 0xffu) * 0x100000001b3u;
  };
  for (const auto& [name, value] : Fields(layout)) {
    add(name);
    add(value);
  }
  return hash;
}

Status Compare(const proto::KvLayout& mine, const proto::KvLayout& theirs) {
  const auto here = Fields(mine);
  const auto there = Fields(theirs);
  std::vector<std::string> differences;
  for (size_t i = 0; i < here.size(); ++i) {
    if (here[i].second == there[i].second) continue;
    differences.push_back(
        absl::StrCat(std::string(here[i].first), " is ", here[i].second, " here and ", there[i].second, " there"));
  }
  if (differences.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("KV layouts differ: ", absl::StrJoin(differences, ", ")));
}

}  // namespace sluice
