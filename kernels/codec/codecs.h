// The codecs, for the list in codec.cc; everyone else includes codec.h. Each has a file of its name.
#pragma once

#include "kernels/codec/codec.h"

namespace sluice {

extern const KvCodecInfo kF32Codec;
extern const KvCodecInfo kBf16Codec;

}  // namespace sluice
