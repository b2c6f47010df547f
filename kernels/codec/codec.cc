#include "kernels/codec/codec.h"

#include <string>

#include "absl/strings/str_join.h"
#include "kernels/codec/codecs.h"

namespace sluice {

absl::Span<const KvCodecInfo> KvCodecs() {
  static const KvCodecInfo codecs[] = {kF32Codec,  kBf16Codec, kF16Codec,   kFp8Codec,
                                       kInt8Codec, kInt4Codec, kMlaFp8Codec};
  return codecs;
}

const KvCodecInfo& Info(KvCodec codec) {
  const auto index = static_cast<size_t>(codec);
  SLUICE_CHECK(index < KvCodecs().size(), "KV codec ", index);
  return KvCodecs()[index];
}

std::string_view Name(KvCodec codec) { return Info(codec).name; }

StatusOr<KvCodec> ParseKvCodec(std::string_view name) {
  for (const KvCodecInfo& info : KvCodecs()) {
    if (info.name == name) return info.codec;
  }
  const auto append = [](std::string* out, const KvCodecInfo& info) { out->append(info.name); };
  return absl::InvalidArgumentError(
      absl::StrCat("unknown KV codec '", std::string(name), "': there are ", absl::StrJoin(KvCodecs(), ", ", append)));
}

StatusOr<KvCodec> KvCodecOfWireCode(uint8_t wire_code) {
  for (const KvCodecInfo& info : KvCodecs()) {
    if (info.wire_code == wire_code) return info.codec;
  }
  return absl::InvalidArgumentError(absl::StrCat("KV codec number ", wire_code, " is unknown: there are ",
                                                 KvCodecs().front().wire_code, " to ", KvCodecs().back().wire_code));
}

}  // namespace sluice
