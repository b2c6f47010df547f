// Any bytes as each of the messages that prefill and decode parse from each other: hello, handoff record, result.
#include <cstdlib>

#include "model/handoff.h"
#include "model/kept_prompt.h"

using namespace sluice;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const HandoffExpectation expected = {
      .request = {77}, .prompt_tokens = 3, .kv_tokens = 3, .n = 2, .max_tokens = 16, .vocab_size = 1000};
  const auto record = ParseHandoffRecord(bytes, expected);
  if (record.ok() && (record->choices_size() != 2 || record->prompt_ids_size() != 3)) std::abort();

  proto::KeptPrompt message;
  const CachePolicy policy = {.kind = CachePolicyKind::kH2o, .budget = 2, .window = 1};
  if (message.ParseFromArray(data, static_cast<int>(size))) {
    const auto kept = FromProto(message, policy, KvLayout::Gqa(2, 1, 16), 3, 3);
    if (kept.ok() && (kept->held() != 2 || kept->Positions(1, 0).size() != 2)) std::abort();
  }

  const auto hello = ParseHello(bytes);
  if (hello.ok()) (void)CompareHello(*hello, *hello);
  const auto result = ParseTransferResult(bytes);
  if (result.ok() && result->code() != 0 && ToStatus(*result).ok()) std::abort();
  return 0;
}
