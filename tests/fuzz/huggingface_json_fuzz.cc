// Any text as a folder's JSON files: the first byte says which file the rest is.
#include <cstdint>
#include <string_view>

#include "model/checkpoint/huggingface_config.h"
#include "model/checkpoint/huggingface_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  constexpr std::string_view kConfig = R"({"model_type":"llama","vocab_size":64,"hidden_size":8,"intermediate_size":8,)"
                                       R"("num_hidden_layers":1,"num_attention_heads":2})";
  constexpr std::string_view kTokenizer = R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]}})";
  constexpr int kVocabSize = 1000;
  switch (data[0]) {
    case 'c':
      sluice::ReadHuggingFaceConfig(text, "", "fuzz").IgnoreError();
      break;
    case 'g':
      sluice::ReadHuggingFaceConfig(kConfig, text, "fuzz").IgnoreError();
      break;
    case 't':
      sluice::ReadHuggingFaceTokenizer({text, "", ""}, kVocabSize, std::nullopt, "fuzz").IgnoreError();
      break;
    default:
      sluice::ReadHuggingFaceTokenizer({kTokenizer, text, ""}, kVocabSize, std::nullopt, "fuzz").IgnoreError();
  }
  return 0;
}
