#include "cli/eval_flags.h"

#include <algorithm>

#include "CLI/CLI.hpp"
#include "common/cache_policy.h"
#include "kernels/codec/codec.h"

namespace sluice {

bool EvalFlags::part(const std::string& name) const {
  return std::find(parts.begin(), parts.end(), name) != parts.end();
}

void AddEvalFlags(CLI::App& app, EvalFlags* flags) {
  const auto add = [&](const char* group, const std::string& flag, auto* value, const std::string& help) {
    return app.add_option(flag, *value, help)->capture_default_str()->group(group);
  };
  const auto count = [&](const char* group, const std::string& flag, auto* value, const std::string& help) {
    return add(group, flag, value, help)->check(CLI::Range(int64_t{0}, int64_t{1} << 30).description(""));
  };
  add("Model", "--model", &flags->model, "GGUF file or Hugging Face folder, run in this process")
      ->type_name("PATH")
      ->required();
  add("Model", "--threads", &flags->threads, "Compute threads; 0 takes one for each CPU")
      ->check(CLI::Range(0, 1024).description(""));
  app.add_flag("--exact", flags->exact, "Compute in f32 with dequantised weights: slower, for comparisons")
      ->group("Model");
  AddBytes(app, "--kv-memory", &flags->kv_memory_bytes, "Memory for KV of texts that run together");
  app.get_option("--kv-memory")->group("Model");

  add("Caches", "--policies", &flags->policies, absl::StrCat("Whose KV stays, ", kPolicyForms))
      ->delimiter(',')
      ->type_name("POLICY,");
  add("Caches", "--codecs", &flags->codecs, "How KV is kept: auto, f32, bf16, f16, fp8, int8, int4 or mla-fp8")
      ->delimiter(',')
      ->type_name("CODEC,");

  add("Measurements", "--parts", &flags->parts, "Which of perplexity, agreement, needles and stream")
      ->delimiter(',')
      ->type_name("PART,")
      ->check(CLI::IsMember({"perplexity", "agreement", "needles", "stream"}).description(""));
  count("Measurements", "--context", &flags->context, "Tokens of a window of text, for perplexity and agreement");
  count("Measurements", "--windows", &flags->windows, "Windows at most");
  count("Measurements", "--block", &flags->block, "Predictions whose perplexity is told together");
  count("Measurements", "--continue", &flags->continuation,
        "agreement: tokens of a window that follow the prompt, which is the rest");
  count("Measurements", "--greedy", &flags->greedy, "agreement: tokens that are drawn behind the prompt");
  count("Measurements", "--needles", &flags->needles,
        "Prompts of each length, at depths from beginning to end; of --input so many at most");
  add("Measurements", "--lengths", &flags->lengths, "needles: tokens of the prompts")
      ->delimiter(',')
      ->type_name("TOKENS,")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30).description(""));
  count("Measurements", "--stream-tokens", &flags->stream_tokens,
        "stream: tokens of one text; 0 takes a quarter more than the model's context");
  count("Measurements", "--seed", &flags->seed, "Of the texts that are generated");

  add("Input and output", "--text", &flags->text_file, "Text to measure on, UTF-8; without it, a built-in one")
      ->type_name("FILE");
  add("Input and output", "--input", &flags->input_file,
      "JSON with any of text, stream (each a string or token ids) and needles (context, question, answer likewise)")
      ->type_name("FILE");
  app.get_option("--input")->excludes("--text");
  add("Input and output", "--json", &flags->json_file, "Write all results to this file")->type_name("FILE");
  add("Input and output", "--plots", &flags->plots_folder, "Write plots (SVG) into this folder")->type_name("FOLDER");
}

Status Check(const EvalFlags& flags) {
  std::vector<std::string> problems;
  const auto positive = [&](const char* flag, int64_t value) {
    if (value < 1) problems.push_back(absl::StrCat(flag, " is ", value, ", not 1 or more"));
  };
  positive("--windows", flags.windows);
  positive("--block", flags.block);
  positive("--needles", flags.needles);
  positive("--kv-memory", flags.kv_memory_bytes);
  if (flags.context < 2) problems.push_back(absl::StrCat("--context is ", flags.context, ", not 2 or more"));
  if (flags.part("agreement")) {
    if (flags.greedy < 2) problems.push_back(absl::StrCat("--greedy is ", flags.greedy, ", not 2 or more"));
    if (flags.continuation < 2 || flags.continuation >= flags.context) {
      problems.push_back(absl::StrCat("--continue is ", flags.continuation, " of a --context of ", flags.context));
    }
  }
  for (const std::string& policy : flags.policies) {
    const Status status = ParseCachePolicySpec(policy).status();
    if (!status.ok()) problems.push_back(absl::StrCat("--policies: ", status.message()));
  }
  for (const std::string& codec : flags.codecs) {
    const Status status = codec == "auto" ? absl::OkStatus() : ParseKvCodec(codec).status();
    if (!status.ok()) problems.push_back(absl::StrCat("--codecs: ", status.message()));
  }
  if (problems.empty()) return absl::OkStatus();
  std::string all = problems[0];
  for (size_t i = 1; i < problems.size(); ++i) absl::StrAppend(&all, "; ", problems[i]);
  return absl::InvalidArgumentError(all);
}

}  // namespace sluice
