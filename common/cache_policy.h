// Which tokens' KV a decode keeps, as pure functions of positions and attention weights: full; the first tokens and the
// newest (StreamingLLM); heavy hitters, chosen by the attention that each token has got so far (H2O); and two more
// settings of the same scores: those of a window of last queries, once (SnapKV), and those of the last query alone,
// every step (TOVA). Sources: StreamingLLM (arXiv 2309.17453), H2O (2306.14048), SnapKV (2404.14469), TOVA
// (2401.06104).
//
// The budget counts the slots that stay between steps. A step runs on one more: its token is written first, everything
// kept and itself is attended to, then one token leaves, and the next one takes its slot.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace sluice {

enum class CachePolicyKind : uint8_t { kFull, kSinkWindow, kH2o, kSnapKv, kTova };
inline constexpr CachePolicyKind kCachePolicyKinds[] = {CachePolicyKind::kFull, CachePolicyKind::kSinkWindow,
                                                        CachePolicyKind::kH2o, CachePolicyKind::kSnapKv,
                                                        CachePolicyKind::kTova};
// "full", "sink-window", "h2o", "snapkv", "tova".
std::string_view Name(CachePolicyKind kind);
StatusOr<CachePolicyKind> ParseCachePolicyKind(std::string_view name);

// A policy with all its numbers, for one prompt.
struct CachePolicy {
  CachePolicyKind kind = CachePolicyKind::kFull;
  int64_t budget =
      0;  // slots between steps, of each list (see model/kept_slots.h); of snapkv after the prompt; 0 in full
  int64_t sinks = 0;    // tokens at positions below stay
  int64_t window = 0;   // so many newest tokens stay; in snapkv the prompt's, whose queries rank the others
  int pool = 1;         // snapkv: scores are averaged over so many neighbours; odd
  float decay = 1;      // h2o: what is left of a score at each step
  bool by_age = false;  // h2o: rank by score over the number of queries that have met the token

  // Whether decode's steps let tokens go; else slots grow with what is generated.
  bool bounded() const { return kind != CachePolicyKind::kFull && kind != CachePolicyKind::kSnapKv; }
  // Whether attention weights decide, and whether they do at decode's steps too.
  bool ranks() const { return kind != CachePolicyKind::kFull && kind != CachePolicyKind::kSinkWindow; }
  bool ranks_steps() const { return ranks() && bounded(); }
  // Whether scores are a mean over all query heads, and a layer keeps the same tokens for each kv head.
  bool per_layer() const { return kind == CachePolicyKind::kTova || kind == CachePolicyKind::kSinkWindow; }

  // Of a prompt's queries the last so many are scored.
  int64_t QueriesScored(int64_t prompt_tokens) const;
  // Tokens of a prompt that stay.
  int64_t Kept(int64_t prompt_tokens) const;
  // Slots that a request needs for a prompt and as many tokens behind it as are ever computed.
  int64_t Slots(int64_t prompt_tokens, int64_t more_tokens) const;
  // Where positions end in a model of `context_tokens`: with its context, for a query is as far from a key as their
  // tokens are from each other. Only in sink-window no distance exceeds the slots; if those fit the context, there is
  // no end (but that positions are 32-bit numbers).
  int64_t PositionsMax(int64_t context_tokens) const;
  // How many of `max_tokens` may be generated after a prompt that is within the context.
  int64_t Generated(int64_t prompt_tokens, int64_t max_tokens, int64_t context_tokens) const;

  bool operator==(const CachePolicy&) const = default;
};
// "full", "sink-window 4+1020", "h2o 2048 (sinks 0, window 1024)".
std::string ToString(const CachePolicy& policy);
// Every contradiction at once, with the values.
Status Validate(const CachePolicy& policy);

// A policy as flags and requests name it; numbers that are not given follow from the others.
struct CachePolicySpec {
  CachePolicyKind kind = CachePolicyKind::kFull;
  std::optional<int64_t> budget;       // slots
  std::optional<double> budget_share;  // or a share of the prompt, in (0, 1]
  std::optional<int64_t> sinks;        // 4 in sink-window, else 0
  std::optional<int64_t> window;       // half the budget in h2o, 32 in snapkv (at most half the budget), 1 in tova
  std::optional<float> decay;
  bool by_age = false;

  bool operator==(const CachePolicySpec&) const = default;
};
// "20%" or "2048" into the spec's budget.
Status SetBudget(const std::string& text, CachePolicySpec* spec);
// "full", "h2o:20%", "tova:512"; "sink-window:4+1020", which is sinks and window, as is "sink-window:0+256". The result
// has passed Validate.
StatusOr<CachePolicySpec> ParseCachePolicySpec(const std::string& text);
// Contradictions that do not depend on the prompt.
Status Validate(const CachePolicySpec& spec);
// The policy for a prompt. A share of it is rounded down, and is at least what sinks and window need. InvalidArgument
// where Validate finds something.
StatusOr<CachePolicy> Resolve(const CachePolicySpec& spec, int64_t prompt_tokens);

}  // namespace sluice
