// The names of the KV codecs, apart from codec.h for the files that are compiled for one instruction set.
#pragma once

#include <stdint.h>

namespace sluice {

enum class KvCodec : uint8_t { kF32, kBf16, kF16, kFp8, kInt8, kInt4, kMlaFp8 };

}  // namespace sluice
