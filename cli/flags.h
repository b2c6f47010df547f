// Flags that CLI11 has no form for, and groups of flags that several subcommands share. A value that cannot be read
// throws CLI::ValidationError while the command line is parsed, which main turns into a sentence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "absl/time/time.h"
#include "common/cache_policy.h"
#include "common/ids.h"
#include "common/sampling_params.h"
#include "common/status.h"

namespace sluice {

// "512MiB", "2GiB", "4096": a number with an optional KiB, MiB or GiB.
StatusOr<int64_t> ParseByteCount(const std::string& text);
std::string FormatByteCount(int64_t bytes);  // the same spelling: "512MiB"
// "1,2,3"
StatusOr<std::vector<TokenId>> ParseTokenIds(const std::string& text);

// Each puts an option into `app` that writes `*value`, whose present value is shown as the default.
void AddBytes(CLI::App& app, const std::string& flag, int64_t* value, const std::string& help);
void AddBytes(CLI::App& app, const std::string& flag, size_t* value, const std::string& help);
void AddMilliseconds(CLI::App& app, const std::string& flag, int64_t* value_ms, const std::string& help);  // "1.5s"
void AddMilliseconds(CLI::App& app, const std::string& flag, int* value_ms, const std::string& help);
void AddDuration(CLI::App& app, const std::string& flag, absl::Duration* value, const std::string& help);
void AddTokenIds(CLI::App& app, const std::string& flag, std::vector<TokenId>* value, const std::string& help);

// How a completion is sampled and where it ends.
void AddSamplingFlags(CLI::App& app, SamplingParams* sampling);

// How help texts say what ParseCachePolicySpec reads.
inline constexpr char kPolicyForms[] =
    "with a budget in tokens or as a share of the prompt: full, h2o:20%, snapkv:512, tova:20%, sink-window:20%, or "
    "sinks and window as in sink-window:4+1020";

// Which tokens' KV stays. Check them with Validate.
inline constexpr const char* kCachePolicyFlags[] = {"--cache-policy", "--cache-budget", "--sinks",
                                                    "--window",       "--score-decay",  "--score-by-age"};
void AddCachePolicyFlags(CLI::App& app, CachePolicySpec* policy);

// How a model is run in this process.
struct LocalModelFlags {
  std::string model;
  int threads = 0;  // 0: one for each CPU that this process may use
  bool exact = false;
  std::string kv_store = "auto";
  CachePolicySpec policy;
};
void AddLocalModelFlags(CLI::App& app, LocalModelFlags* flags);

}  // namespace sluice
