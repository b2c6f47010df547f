#include "model/kv_layout.h"

#include <vector>

#include "absl/strings/str_join.h"

namespace sluice {

namespace {

std::string_view PairingName(RopePairing pairing) {
  return pairing == RopePairing::kInterleaved ? "interleaved" : "half";
}

size_t ElementBytes(KvCodec codec) { return codec == KvCodec::kF32 ? 4 : 2; }

// A row is one (token, kv head): codecs that keep something beside the codes keep it per row, so sizes are counted in
// rows and never from the elements of several heads together.
size_t CodecRowBytes(const KvLayout& layout, KvCodec codec) {
  return static_cast<size_t>(layout.head_dim) * ElementBytes(codec);
}

// Every field of the message, named, in one order: what the hash runs over and what Compare walks.
std::vector<std::pair<std::string_view, std::string>> Fields(const proto::KvLayout& layout) {
  return {{"layers", absl::StrCat(layout.layers())},
          {"kv_heads", absl::StrCat(layout.kv_heads())},
          {"head_dim", absl::StrCat(layout.head_dim())},
          {"store_codec", layout.store_codec()},
          {"rope_pairing", layout.rope_pairing()},
          {"page_tokens", absl::StrCat(layout.page_tokens())},
          {"tensor_parallel", absl::StrCat(layout.tensor_parallel())}};
}

}  // namespace

std::string_view Name(KvCodec codec) { return codec == KvCodec::kF32 ? "f32" : "bf16"; }

StatusOr<KvCodec> ParseKvCodec(std::string_view name) {
  for (const KvCodec codec : {KvCodec::kF32, KvCodec::kBf16}) {
    if (name == Name(codec)) return codec;
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown KV codec '", std::string(name), "': there are f32 and bf16"));
}

KvLayout KvLayout::Of(const ModelConfig& config) {
  return {.layers = config.layers,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim,
          .pairing = config.rope.pairing};
}

size_t LayerBytes(const KvLayout& layout, KvCodec codec, int64_t slots) {
  return 2 * CodecRowBytes(layout, codec) * static_cast<size_t>(layout.kv_heads) * static_cast<size_t>(slots);
}

size_t Bytes(const KvLayout& layout, KvCodec codec, int64_t slots) {
  return LayerBytes(layout, codec, slots) * static_cast<size_t>(layout.layers);
}

proto::KvLayout ToProto(const KvLayout& layout, KvCodec store, int page_tokens) {
  proto::KvLayout message;
  message.set_layers(static_cast<uint32_t>(layout.layers));
  message.set_kv_heads(static_cast<uint32_t>(layout.kv_heads));
  message.set_head_dim(static_cast<uint32_t>(layout.head_dim));
  message.set_store_codec(std::string(Name(store)));
  message.set_rope_pairing(std::string(PairingName(layout.pairing)));
  message.set_page_tokens(static_cast<uint32_t>(page_tokens));
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
