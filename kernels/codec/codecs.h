// The codecs, for the list in codec.cc; everyone else includes codec.h. Each has a file of its name.
#pragma once

#include "kernels/codec/codec.h"

namespace sluice {

extern const KvCodecInfo kF32Codec;
extern const KvCodecInfo kBf16Codec;
extern const KvCodecInfo kF16Codec;
extern const KvCodecInfo kFp8Codec;
extern const KvCodecInfo kInt8Codec;
extern const KvCodecInfo kInt4Codec;
extern const KvCodecInfo kMlaFp8Codec;

}  // namespace sluice
