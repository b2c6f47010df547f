#include "kernels/codec/codec.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_join.h"
#include "kernels/codec/codecs.h"

namespace sluice {

absl::Span<const KvCodecInfo> KvCodecs() {
  static const KvCodecInfo codecs[] = {kF32Codec,  kBf16Codec, kF16Codec,   kFp8Codec,
                                       kInt8Codec, kInt4Codec, kMlaFp8Codec};
  return codecs;
}

absl::Span<const KvCodec> KvCodecsByAccuracy() {
  static constexpr KvCodec kCodecs[] = {KvCodec::kF32, KvCodec::kF16,    KvCodec::kBf16, KvCodec::kInt8,
                                        KvCodec::kFp8, KvCodec::kMlaFp8, KvCodec::kInt4};
  return kCodecs;
}

int AccuracyRank(KvCodec codec) {
  const absl::Span<const KvCodec> all = KvCodecsByAccuracy();
  const auto it = std::find(all.begin(), all.end(), codec);
  SLUICE_CHECK(it != all.end(), "a codec of unknown accuracy: ", std::string(Name(codec)));
  return static_cast<int>(it - all.begin());
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
