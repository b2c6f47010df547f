#include "kernels/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_join.h"

namespace sluice {

namespace {

#if defined(__x86_64__)
// Asked of the processor itself: clang 14's __builtin_cpu_supports does not know f16c.
bool HasF16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
bool HasAvx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16c(); }
bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}
bool HasAvx512Bf16() { return HasAvx512() && __builtin_cpu_supports("avx512bf16"); }
#else
bool HasAvx2() { return false; }
bool HasAvx512() { return false; }
bool HasAvx512Bf16() { return false; }
#endif

Isa& Active() {
  static Isa isa = SupportedIsas().back();
  return isa;
}

std::string SupportedNames() {
  return absl::StrJoin(SupportedIsas(), ", ",
                       [](std::string* out, Isa isa) { absl::StrAppend(out, absl::string_view(Name(isa).data())); });
}

}  // namespace

std::string_view Name(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kPortable:
      break;
  }
  return "portable";
}

std::vector<Isa> SupportedIsas() {
  std::vector<Isa> isas = {Isa::kPortable};
  if (HasAvx2()) isas.push_back(Isa::kAvx2);
  if (HasAvx512()) isas.push_back(Isa::kAvx512);
  return isas;
}

Status SetIsa(Isa isa) {
  const std::vector<Isa> isas = SupportedIsas();
  if (std::find(isas.begin(), isas.end(), isa) == isas.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("this machine lacks ", Name(isa).data(), "; it has ", SupportedNames()));
  }
  Active() = isa;
  return absl::OkStatus();
}

Status SetIsaFromEnvironment() {
  const char* value = std::getenv("SLUICE_CPU");
  if (value == nullptr || *value == '\0') return SetIsa(SupportedIsas().back());
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (Name(isa) == value) return SetIsa(isa);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "SLUICE_CPU is \"", value, "\"; known are portable, avx2, avx512; this machine has ", SupportedNames()));
}

Isa ActiveIsa() { return Active(); }

bool HasBf16Dot() {
  static const bool has = HasAvx512Bf16();
  return has && ActiveIsa() == Isa::kAvx512;
}

}  // namespace sluice
