// What each store codec costs in accuracy on a real model, beside the reference's numbers, as the table of
// docs/kv-accuracy.md: mean negative log-likelihood, mean KL divergence from f32 KV and agreement of the likeliest
// token, with f32 arithmetic everywhere else. Its numbers do not depend on the machine.
//
//   kv_accuracy --model SmolLM2-135M-Instruct.Q4_1.gguf
#include "tests/model/kv_accuracy.h"

#include <algorithm>
#include <iostream>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "kernels/isa.h"
#include "tests/model/engine_fixture.h"
#include "tests/model/goldens.h"

namespace sluice {
namespace {

struct Options {
  std::string model;
  std::string data = SLUICE_TEST_DATA "/quality";
  int threads = 2;
  int tokens = 4096;
  int context = 2048;
  int block = 256;
};

void PrintRow(const CodecAccuracy& row, double base_nll, const ExpectedAccuracy* expected) {
  std::string line =
      absl::StrFormat("| %s | %.4f | %+.4f | %.2e | %.1f %% |", std::string(Name(row.codec)), row.mean_nll(),
                      row.mean_nll() - base_nll, row.mean_kld(), row.top1_agreement() * 100);
  if (expected != nullptr) {
    line += absl::StrFormat(" %+.4f | %.2e | %.1f %% |", expected->delta_nll, expected->mean_kld,
                            expected->top1_agreement * 100);
  }
  std::cout << line << "\n";
}

void Run(const Options& options) {
  const std::vector<int64_t> corpus = ReadGoldenTensors(options.data + "/corpus.safetensors").at("corpus").i64;
  const auto tokens = std::min(corpus.size(), static_cast<size_t>(options.tokens));
  const std::vector<TokenId> ids(corpus.begin(), corpus.begin() + static_cast<std::ptrdiff_t>(tokens));
  const auto checkpoint = Must(OpenCheckpoint(options.model));
  const auto transformer = Must(Transformer::Create(
      checkpoint.get(),
      {.threads = options.threads, .batch_tokens_max = options.block, .logit_rows_max = options.block, .exact = true}));
  const auto rows = MeasureKvAccuracy(*transformer, ids, options.context, options.block);
  const auto expected = ReadExpectedAccuracy(options.data + "/codecs.json");
  std::cout << "f32: " << absl::StrFormat("%.4f", rows[0].mean_nll()) << " nats a token over " << rows[0].tokens
            << " tokens, the reference " << absl::StrFormat("%.4f", expected[0].nll) << "\n\n"
            << "| KV | NLL | difference | mean KL | same top-1 | reference: difference | mean KL | same top-1 |\n"
            << "|---|---|---|---|---|---|---|---|\n";
  for (size_t i = 1; i < rows.size(); ++i) {
    const auto at = std::find_if(expected.begin(), expected.end(),
                                 [&](const ExpectedAccuracy& e) { return e.codec == Name(rows[i].codec); });
    PrintRow(rows[i], rows[0].mean_nll(), at == expected.end() ? nullptr : &*at);
  }
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  sluice::Options options;
  CLI::App app("Accuracy of KV codecs on a real model");
  app.add_option("--model", options.model, "SmolLM2-135M-Instruct in Q4_1, as GGUF")->required();
  app.add_option("--data", options.data, "Folder of corpus.safetensors and codecs.json")->capture_default_str();
  app.add_option("--threads", options.threads)->capture_default_str();
  app.add_option("--tokens", options.tokens, "Of the corpus, which has 4096; the reference took all of them")
      ->capture_default_str()
      ->check(CLI::Range(2, 4096));
  app.add_option("--context", options.context, "Tokens of a window")->capture_default_str()->check(CLI::Range(2, 4096));
  app.add_option("--block", options.block, "Tokens of a forward pass")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  CLI11_PARSE(app, argc, argv);
  const sluice::Status isa = sluice::SetIsaFromEnvironment();
  SLUICE_CHECK(isa.ok(), "", isa.ToString());
  sluice::Run(options);
  return 0;
}
