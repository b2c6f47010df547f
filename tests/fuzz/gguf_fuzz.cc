// Any bytes as a GGUF file: the container, then the model's configuration and its tokenizer.
#include <cstdint>

#include "model/checkpoint/gguf_file.h"
#include "model/checkpoint/gguf_model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = sluice::GgufFile::Parse({reinterpret_cast<const std::byte*>(data), size}, "fuzz");
  if (!file.ok()) return 0;
  for (const sluice::StoredTensor& tensor : file->tensors()) {
    // Touches both ends of what the parser says is there.
    volatile std::byte touched = tensor.bytes.front();
    touched = tensor.bytes.back();
    (void)touched;
  }
  const auto config = sluice::ReadGgufConfig(*file);
  if (config.ok()) sluice::ReadGgufTokenizer(*file, *config).IgnoreError();
  return 0;
}
