// Which instruction set the kernels run on: the best that the machine has, or what SLUICE_CPU names.
#pragma once

#include <string_view>
#include <vector>

#include "common/status.h"

namespace sluice {

enum class Isa { kPortable, kAvx2, kAvx512 };  // avx2 means AVX2+FMA+F16C; avx512 means F+BW+DQ+VL+VNNI on top

std::string_view Name(Isa isa);  // "portable", "avx2", "avx512": what SLUICE_CPU takes

// All that this machine can run, slowest first. Tests run every kernel on each.
std::vector<Isa> SupportedIsas();

// Chooses for the whole process; read by every kernel call. InvalidArgument where the name is unknown,
// FailedPrecondition where the machine lacks the instructions (both name what there is). Not thread-safe: called at
// start-up and by tests.
Status SetIsa(Isa isa);
Status SetIsaFromEnvironment();  // SLUICE_CPU; unset or empty is the best supported

Isa ActiveIsa();

// Whether it also has dot products of bf16 pairs (AVX512_BF16), which part of the AVX-512 machines lack.
bool HasBf16Dot();

}  // namespace sluice
