// The loops of limits.cc, compiled for the machine that builds them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice {

void ReadStream(const void* data, size_t bytes);
void MultiplyAddF32(int64_t loops);
void MultiplyAddInt8(int64_t loops);
int64_t F32MacsPerLoop();
int64_t Int8MacsPerLoop();

}  // namespace sluice
