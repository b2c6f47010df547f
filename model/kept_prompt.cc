#include "model/kept_prompt.h"

#include <algorithm>
#include <cmath>

namespace sluice {

namespace {

constexpr size_t kFieldBytesMax = 6;   // a tag and a length
constexpr size_t kListBytesMax = 128;  // of a list in memory, but for what it lists

template <typename... Parts>
Status Wrong(int list, const Parts&... what) {
  return absl::InvalidArgumentError(absl::StrCat("kept tokens of list ", list, ": ", what...));
}

// Positions and scores of one list out of the message.
Status Read(const proto::KeptList& message, int list, const CachePolicy& policy, int64_t prompt_tokens,
            std::vector<int32_t>* positions) {
  const int64_t kept = policy.Kept(prompt_tokens);
  const int64_t scores = policy.ranks_steps() ? kept : 0;
  if (message.steps_size() != kept || message.scores_size() != scores) {
    return Wrong(list, message.steps_size(), " positions and ", message.scores_size(), " scores, not ", kept, " and ",
                 scores);
  }
  positions->clear();
  int64_t position = 0;
  for (int i = 0; i < message.steps_size(); ++i) {
    position += message.steps(i);
    if (position >= prompt_tokens || (i > 0 && message.steps(i) == 0)) {
      return Wrong(list, "position ", position, " after ", i, " others in a prompt of ", prompt_tokens);
    }
    positions->push_back(static_cast<int32_t>(position));
  }
  for (int64_t i = 0; i < std::min(policy.sinks, kept); ++i) {
    if ((*positions)[static_cast<size_t>(i)] != i) return Wrong(list, "sink ", i, " is missing");
  }
  for (int64_t i = 0; i < std::min(policy.window, kept); ++i) {
    const int64_t newest = prompt_tokens - 1 - i;
    if ((*positions)[static_cast<size_t>(kept - 1 - i)] != newest)
      return Wrong(list, "position ", newest, " is missing");
  }
  for (const float score : message.scores()) {
    if (!std::isfinite(score)) return Wrong(list, "a score is ", score);
  }
  return absl::OkStatus();
}

}  // namespace

size_t KeptPromptBytesMax(const CachePolicy& policy, const KvLayout& layout, int64_t prompt_tokens) {
  if (!policy.ranks()) return 0;
  const size_t slot = 1 + (policy.ranks_steps() ? sizeof(float) : 0);
  // Steps add up to less than the prompt: so no more than a 128th of it are too long for one byte, and so on.
  size_t long_steps = 0;
  for (int64_t tokens = prompt_tokens >> 7; tokens > 0; tokens >>= 7) long_steps += static_cast<size_t>(tokens);
  const auto lists = static_cast<size_t>(KeptSlots(policy, layout, 0).all_lists());
  return lists * (static_cast<size_t>(policy.Kept(prompt_tokens)) * slot + long_steps + 3 * kFieldBytesMax);
}

size_t KeptPromptMemoryBytes(const CachePolicy& policy, const KvLayout& layout, int64_t prompt_tokens) {
  if (!policy.ranks()) return 0;
  // A position and a score are as large in the message as in the lists that it is made of; beside them are its objects.
  const auto lists = static_cast<size_t>(KeptSlots(policy, layout, 0).all_lists());
  return KeptSlots::Bytes(policy, layout, policy.Kept(prompt_tokens)) + lists * kListBytesMax +
         KeptPromptBytesMax(policy, layout, prompt_tokens);
}

proto::KeptPrompt ToProto(const KeptSlots& kept, const KvLayout& layout) {
  proto::KeptPrompt message;
  if (!kept.policy().ranks()) return message;
  for (int layer = 0; layer < layout.layers; ++layer) {
    for (int list = 0; list < kept.lists(); ++list) {
      proto::KeptList& out = *message.add_lists();
      int32_t last = 0;
      out.mutable_steps()->Reserve(static_cast<int>(kept.held()));  // or else it takes up to twice as much
      for (const int32_t position : kept.Positions(layer, list)) {
        out.add_steps(static_cast<uint32_t>(position - last));
        last = position;
      }
      const std::vector<float> scores = kept.Scores(layer, list);
      out.mutable_scores()->Assign(scores.begin(), scores.end());
    }
  }
  return message;
}

StatusOr<KeptSlots> FromProto(const proto::KeptPrompt& message, const CachePolicy& policy, const KvLayout& layout,
                              int64_t prompt_tokens, int64_t slots_max) {
  KeptSlots kept(policy, layout, slots_max);
  const int lists = policy.ranks() ? kept.all_lists() : 0;
  if (message.lists_size() != lists) {
    return absl::InvalidArgumentError(absl::StrCat("kept tokens of ", message.lists_size(), " lists, not ", lists));
  }
  if (!policy.ranks()) kept.KeepPrompt(0, prompt_tokens, nullptr, 0);
  std::vector<int32_t> positions;
  for (int i = 0; i < lists; ++i) {
    SLUICE_RETURN_IF_ERROR(Read(message.lists(i), i, policy, prompt_tokens, &positions));
    kept.SetPrompt(
        i / kept.lists(), i % kept.lists(), positions,
        absl::MakeConstSpan(message.lists(i).scores().data(), static_cast<size_t>(message.lists(i).scores_size())));
  }
  kept.FinishPrompt(prompt_tokens);
  return kept;
}

}  // namespace sluice
