// A model and a TextRunner over it.
#pragma once

#include <memory>
#include <string>

#include "eval/text_runner.h"
#include "tests/model/engine_fixture.h"

namespace sluice {

struct RunnerFixture {
  explicit RunnerFixture(const std::string& path, bool exact = true, TextRunnerOptions options = {})
      : checkpoint(Must(OpenCheckpoint(path))),
        transformer(Must(Transformer::Create(checkpoint.get(), TextRunner::Transformers(/*threads=*/2, exact)))),
        runner(transformer.get(), std::move(options)) {}

  std::vector<TextOutcome> Run(const std::vector<TextRun>& runs) { return Must(runner.Run(runs)); }

  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<Transformer> transformer;
  TextRunner runner;
};

inline const std::string kTinyGqa = SLUICE_TEST_DATA "/policies/models/tiny-llama-gqa";
inline const std::string kTinyMla = SLUICE_TEST_DATA "/policies/models/tiny-deepseek-mla";

inline std::vector<TokenId> TinyText(size_t tokens, size_t seed) {
  std::vector<TokenId> ids;
  for (size_t i = 0; i < tokens; ++i) ids.push_back(static_cast<TokenId>((i * i * 5 + i * 11 + seed * 29) % 256));
  return ids;
}

}  // namespace sluice
