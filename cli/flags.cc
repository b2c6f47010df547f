#include "cli/flags.h"

#include <charconv>

#include "CLI/Config.hpp"
#include "CLI/Error.hpp"
#include "CLI/Formatter.hpp"
#include "CLI/Option.hpp"
#include "CLI/Validators.hpp"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "model/kv_layout.h"

namespace sluice {
namespace {

struct ByteUnit {
  std::string_view name;
  int64_t bytes;
};
constexpr ByteUnit kByteUnits[] = {{"GiB", int64_t{1} << 30}, {"MiB", int64_t{1} << 20}, {"KiB", int64_t{1} << 10}};

// Adds an option whose text `set` reads; what `set` refuses is an error of the command line.
template <typename Set>
void AddText(CLI::App& app, const std::string& flag, const std::string& type, const std::string& shown,
             const std::string& help, Set set) {
  app.add_option_function<std::string>(
         flag,
         [flag, set](const std::string& text) {
           const Status status = set(text);
           if (!status.ok()) throw CLI::ValidationError(flag, std::string(status.message()));
         },
         help)
      ->type_name(type)
      ->default_str(shown)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

StatusOr<absl::Duration> ParsePositiveDuration(const std::string& text) {
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration) || duration < absl::ZeroDuration() ||
      duration == absl::InfiniteDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not a duration such as 500ms, 10s or 2m"));
  }
  return duration;
}

template <typename Count>
void AddByteCount(CLI::App& app, const std::string& flag, Count* value, const std::string& help) {
  AddText(app, flag, "BYTES", FormatByteCount(static_cast<int64_t>(*value)), help, [value](const std::string& text) {
    const StatusOr<int64_t> bytes = ParseByteCount(text);
    if (bytes.ok()) *value = static_cast<Count>(*bytes);
    return bytes.status();
  });
}

template <typename Count>
void AddMillisecondCount(CLI::App& app, const std::string& flag, Count* value_ms, const std::string& help) {
  AddText(app, flag, "DURATION", absl::FormatDuration(absl::Milliseconds(*value_ms)), help,
          [value_ms](const std::string& text) -> Status {
            SLUICE_ASSIGN_OR_RETURN(const absl::Duration duration, ParsePositiveDuration(text));
            const int64_t ms = absl::ToInt64Milliseconds(duration);
            if (ms > std::numeric_limits<Count>::max()) return absl::InvalidArgumentError(text + " is too long");
            *value_ms = static_cast<Count>(ms);
            return absl::OkStatus();
          });
}

std::vector<std::string> StoreCodecNames() {
  std::vector<std::string> names = {"auto"};
  for (const KvCodecInfo& info : KvCodecs()) names.emplace_back(info.name);
  return names;
}

}  // namespace

StatusOr<int64_t> ParseByteCount(const std::string& text) {
  int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  const std::string_view unit(rest, static_cast<size_t>(end - rest));
  int64_t scale = unit.empty() ? 1 : 0;
  for (const ByteUnit& known : kByteUnits) {
    if (unit == known.name) scale = known.bytes;
  }
  if (error != std::errc() || number < 0 || scale == 0 || number > INT64_MAX / scale) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is not a number of bytes such as 4096, 64KiB, 512MiB or 2GiB"));
  }
  return number * scale;
}

std::string FormatByteCount(int64_t bytes) {
  for (const ByteUnit& unit : kByteUnits) {
    if (bytes >= unit.bytes && bytes % unit.bytes == 0) {
      return absl::StrCat(bytes / unit.bytes, absl::string_view(unit.name.data(), unit.name.size()));
    }
  }
  return absl::StrCat(bytes);
}

StatusOr<std::vector<TokenId>> ParseTokenIds(const std::string& text) {
  std::vector<TokenId> ids;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    TokenId id = 0;
    const auto [rest, error] = std::from_chars(part.data(), part.data() + part.size(), id);
    if (error != std::errc() || rest != part.data() + part.size() || id < 0) {
      return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not a list of token ids such as 1,2,3"));
    }
    ids.push_back(id);
  }
  return ids;
}

void AddBytes(CLI::App& app, const std::string& flag, int64_t* value, const std::string& help) {
  AddByteCount(app, flag, value, help);
}

void AddBytes(CLI::App& app, const std::string& flag, size_t* value, const std::string& help) {
  AddByteCount(app, flag, value, help);
}

void AddMilliseconds(CLI::App& app, const std::string& flag, int64_t* value_ms, const std::string& help) {
  AddMillisecondCount(app, flag, value_ms, help);
}

void AddMilliseconds(CLI::App& app, const std::string& flag, int* value_ms, const std::string& help) {
  AddMillisecondCount(app, flag, value_ms, help);
}

void AddDuration(CLI::App& app, const std::string& flag, absl::Duration* value, const std::string& help) {
  AddText(app, flag, "DURATION", absl::FormatDuration(*value), help, [value](const std::string& text) {
    const StatusOr<absl::Duration> duration = ParsePositiveDuration(text);
    if (duration.ok()) *value = *duration;
    return duration.status();
  });
}

void AddTokenIds(CLI::App& app, const std::string& flag, std::vector<TokenId>* value, const std::string& help) {
  // A config file may spell them as an array, which arrives as several values.
  app.add_option_function<std::vector<std::string>>(
         flag,
         [flag, value](const std::vector<std::string>& texts) {
           value->clear();
           for (const std::string& text : texts) {
             const StatusOr<std::vector<TokenId>> ids = ParseTokenIds(text);
             if (!ids.ok()) throw CLI::ValidationError(flag, std::string(ids.status().message()));
             value->insert(value->end(), ids->begin(), ids->end());
           }
         },
         help)
      ->type_name("ID,")
      ->expected(1, CLI::detail::expected_max_vector_size)
      ->allow_extra_args(false);
}

void AddSamplingFlags(CLI::App& app, SamplingParams* sampling) {
  const auto add = [&](const std::string& flag, auto* value, const std::string& help) {
    app.add_option(flag, *value, help)->capture_default_str()->group("Sampling");
  };
  add("--max-tokens", &sampling->max_tokens, "Tokens to generate at most");
  add("--temperature", &sampling->temperature, "0 takes the likeliest token; up to 2");
  add("--top-k", &sampling->top_k, "Keep the K likeliest tokens; 0 keeps all");
  add("--top-p", &sampling->top_p, "Keep the likeliest tokens up to this probability");
  add("--min-p", &sampling->min_p, "Drop tokens below this share of the likeliest one's probability");
  add("--repetition-penalty", &sampling->repetition_penalty, "Of tokens in prompt and answer; 1 is none");
  add("--presence-penalty", &sampling->presence_penalty, "Of tokens already in the answer; -2 to 2");
  add("--frequency-penalty", &sampling->frequency_penalty, "The same, times how often they occur; -2 to 2");
  add("--seed", &sampling->seed, "Of the random numbers: the same seed gives the same answer");
  add("--min-tokens", &sampling->min_tokens, "Tokens to generate at least");
  app.add_flag("--ignore-eos", sampling->ignore_eos, "Go on past the model's end tokens")->group("Sampling");
  app.add_option("--stop", sampling->stop_strings, "End where this text appears; may be given again")
      ->expected(1, CLI::detail::expected_max_vector_size)
      ->allow_extra_args(false)
      ->group("Sampling");
  AddTokenIds(app, "--stop-token-ids", &sampling->stop_token_ids, "End at these tokens");
  app.get_option("--stop-token-ids")->group("Sampling");
}

void AddCachePolicyFlags(CLI::App& app, CachePolicySpec* policy) {
  AddText(app, "--cache-policy", "POLICY", std::string(Name(policy->kind)),
          "Whose KV stays: full, sink-window, h2o, snapkv or tova", [policy](const std::string& text) {
            const StatusOr<CachePolicyKind> kind = ParseCachePolicyKind(text);
            if (kind.ok()) policy->kind = *kind;
            return kind.status();
          });
  AddText(app, "--cache-budget", "SLOTS|%", "", "How many tokens stay: a number, or a share of the prompt such as 20%",
          [policy](const std::string& text) { return SetBudget(text, policy); });
  const auto number = [&](const char* flag, std::optional<int64_t>* value, const char* help) {
    app.add_option(flag, *value, help)->type_name("TOKENS");
  };
  number("--sinks", &policy->sinks, "First tokens that stay, of sink-window (4 unless told) and h2o (0)");
  number("--window", &policy->window,
         "Newest tokens that stay: the rest of the budget in sink-window, half of it in h2o, 1 in tova; in snapkv the "
         "prompt's last ones, by whose attention the others are chosen (32)");
  app.add_option("--score-decay", policy->decay, "h2o: what is left of a token's score at each step")->type_name("X");
  app.add_flag("--score-by-age", policy->by_age, "h2o: rank by a token's score over the steps since it came");
  for (const char* flag : kCachePolicyFlags) app.get_option(flag)->group("Cache");
}

void AddLocalModelFlags(CLI::App& app, LocalModelFlags* flags) {
  app.add_option("--model", flags->model, "GGUF file or Hugging Face folder, run in this process")
      ->type_name("PATH")
      ->group("Model");
  app.add_option("--threads", flags->threads, "Compute threads; 0 takes one for each CPU")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024).description(""))
      ->group("Model");
  app.add_flag("--exact", flags->exact, "Compute in f32 with dequantised weights: slower, for comparisons")
      ->group("Model");
  app.add_option("--kv-store", flags->kv_store, "How KV is kept: auto, f32, bf16, f16, fp8, int8, int4 or mla-fp8")
      ->capture_default_str()
      ->type_name("CODEC")
      ->check(CLI::IsMember(StoreCodecNames()).description(""))
      ->group("Model");
  AddCachePolicyFlags(app, &flags->policy);
}

}  // namespace sluice
