// A choice's state as it comes over the wire: refused, or exactly what its tokens lead to, and able to go on.
#include "model/generation.h"
#include "tests/model/text/small_tokenizers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::unique_ptr<sluice::Tokenizer> tokenizer = sluice::SmallTokenizer("gpt2-style");
  static const sluice::GenerationContext context = [] {
    sluice::GenerationContext c;
    c.tokenizer = tokenizer.get();
    c.vocab_size = tokenizer->vocab_size();
    c.positions_max = 50;
    c.prompt_ids = {1, 2};
    c.eos_ids = {700};
    c.sampling.n = 2;
    c.sampling.max_tokens = 30;
    c.sampling.min_tokens = 2;
    c.sampling.stop_strings = {"the", "e ", "abcabd"};
    return c;
  }();
  sluice::proto::ChoiceState state;
  if (!state.ParseFromArray(data, static_cast<int>(size))) return 0;
  auto generation = sluice::Generation::Resume(&context, state);
  if (!generation.ok()) {
    SLUICE_CHECK(generation.status().code() == absl::StatusCode::kDataLoss);
    return 0;
  }
  state.clear_unsent();
  state.DiscardUnknownFields();
  SLUICE_CHECK(generation->State().SerializeAsString() == state.SerializeAsString());
  if (!generation->finished()) {
    const std::vector<float> logits(static_cast<size_t>(context.vocab_size), 1.0f);
    SLUICE_CHECK(generation->Step(logits).ok());
  }
  return 0;
}
