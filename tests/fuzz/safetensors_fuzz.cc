// Any bytes as a safetensors file.
#include <cstdint>

#include "model/checkpoint/safetensors_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto tensors = sluice::ParseSafetensors({reinterpret_cast<const std::byte*>(data), size}, "fuzz");
  if (!tensors.ok()) return 0;
  for (const sluice::StoredTensor& tensor : *tensors) {
    // Touches both ends of what the parser says is there.
    volatile std::byte touched = tensor.bytes.front();
    touched = tensor.bytes.back();
    (void)touched;
  }
  return 0;
}
