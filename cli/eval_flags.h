// What `sluice eval` measures, as flags say it.
#pragma once

#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "cli/flags.h"
#include "common/status.h"

namespace sluice {

struct EvalFlags {
  std::string model;
  int threads = 0;  // 0: one for each CPU
  bool exact = false;
  int64_t kv_memory_bytes = int64_t{2} << 30;

  std::string text_file;   // UTF-8
  std::string input_file;  // JSON with any of text, stream and needles; see eval_input.h

  std::vector<std::string> parts = {"perplexity", "agreement", "needles"};
  std::vector<std::string> policies = {"full", "sink-window:20%", "h2o:20%", "snapkv:20%", "tova:20%"};
  std::vector<std::string> codecs = {"auto"};
  int64_t context = 1024;  // tokens of a window of text
  int64_t windows = 2;
  int64_t block = 128;
  int64_t continuation = 128;  // of a window's tokens, those that follow the prompt in agreement
  int64_t greedy = 32;
  int needles = 8;  // of each length
  std::vector<int64_t> lengths = {1024};
  int64_t stream_tokens = 0;  // 0: a quarter more than the model's context
  uint64_t seed = 1;

  std::string json_file;
  std::string plots_folder;

  bool part(const std::string& name) const;
};
void AddEvalFlags(CLI::App& app, EvalFlags* flags);

// InvalidArgument that can be told without the model.
Status Check(const EvalFlags& flags);

}  // namespace sluice
