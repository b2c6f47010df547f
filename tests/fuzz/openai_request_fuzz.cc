// Bodies of the public API: the first byte chooses which. Whatever parses must be what the workers may be given.
#include <string>

#include "common/status.h"
#include "gateway/openai_request.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int kVocab = 100;
  if (size == 0) return 0;
  const auto api = data[0] % 2 == 0 ? sluice::OpenAiApi::kCompletions : sluice::OpenAiApi::kChat;
  const std::string_view body(reinterpret_cast<const char*>(data + 1), size - 1);
  const auto request = sluice::ParseOpenAiRequest(api, body, kVocab);
  if (!request.ok()) {
    SLUICE_CHECK(absl::IsInvalidArgument(request.status()) && !request.status().message().empty());
    return 0;
  }
  sluice::SamplingParams sampling = request->sampling;
  sampling.max_tokens = request->max_tokens.value_or(1 << 24);
  SLUICE_CHECK(sampling.Validate(kVocab).ok());
  for (const sluice::TokenId id : request->prompt_ids) SLUICE_CHECK(id >= 0 && id < kVocab);
  for (const auto& message : request->messages) {
    SLUICE_CHECK(message["role"].is_string());
    SLUICE_CHECK(!message["content"].is_array());
  }
  return 0;
}
