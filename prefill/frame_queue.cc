#include "prefill/frame_queue.h"

#include <algorithm>

#include "common/status.h"

namespace sluice::prefill {

namespace {

// Adds `more` to `range` where it is the same tokens of the next layers.
bool Extend(KvRange& range, const KvRange& more) {
  const bool same_tokens = range.first_token == more.first_token && range.tokens == more.tokens;
  if (!same_tokens || range.layer + range.layers != more.layer) return false;
  range.layers += more.layers;
  return true;
}

// How many tokens of one layer the next frame takes, where that layer is larger than a frame.
int64_t EvenShare(const FrameLimits& limits, int64_t tokens) {
  const auto fits = [&limits](int64_t count) {
    return BodyBytes(limits.layout, limits.codec, 1, count) <= limits.bytes_max;
  };
  for (int64_t frames = 2;; ++frames) {
    const int64_t share = (tokens + frames - 1) / frames;
    if (share == 1 || fits(share)) return share;
  }
}

}  // namespace

void FrameQueue::Add(const KvRange& range) {
  if (added_.empty() || !Extend(added_.back(), range)) added_.push_back(range);
  if (final_.empty() || !Extend(final_.back(), range)) final_.push_back(range);
}

bool FrameQueue::WasAdded(const KvRange& range) const {
  return std::any_of(added_.begin(), added_.end(), [&range](const KvRange& added) {
    return range.layer >= added.layer && range.layer + range.layers <= added.layer + added.layers &&
           range.first_token >= added.first_token &&
           range.first_token + range.tokens <= added.first_token + added.tokens;
  });
}

int64_t FrameQueue::Close(int64_t kv_tokens) {
  closed_ = true;
  kv_tokens = std::max(kv_tokens, taken_end_);
  for (KvRange& range : final_) range.tokens = std::min(range.tokens, kv_tokens - range.first_token);
  std::erase_if(final_, [](const KvRange& range) { return range.tokens <= 0; });
  return kv_tokens;
}

std::optional<KvRange> FrameQueue::Next(const FrameLimits& limits) const {
  if (!again_.empty()) return again_.front();
  if (final_.empty()) return std::nullopt;
  const KvRange& range = final_.front();
  KvRange frame = {.layer = range.layer, .layers = 1, .first_token = range.first_token, .tokens = range.tokens};
  const auto bytes = [&](int layers) { return BodyBytes(limits.layout, limits.codec, layers, frame.tokens); };
  if (bytes(1) > limits.bytes_max) {
    frame.tokens = EvenShare(limits, range.tokens);
    return frame;
  }
  while (bytes(frame.layers) < limits.bytes_min && frame.layers < range.layers &&
         bytes(frame.layers + 1) <= limits.bytes_max)
    ++frame.layers;
  const bool more_layers_may_come = frame.layers == range.layers && range.layer + range.layers < limits.layout.layers &&
                                    final_.size() == 1 && !closed_ && !rest_of_layer_;
  if (more_layers_may_come && bytes(frame.layers) < limits.bytes_min && bytes(frame.layers + 1) <= limits.bytes_max)
    return std::nullopt;
  return frame;
}

void FrameQueue::Pop(const KvRange& frame) {
  if (!again_.empty()) return again_.pop_front();
  taken_end_ = std::max(taken_end_, frame.first_token + frame.tokens);
  SLUICE_CHECK(!final_.empty() && final_.front().layer == frame.layer && frame.layers <= final_.front().layers &&
                   frame.tokens <= final_.front().tokens,
               "a frame that was not the next");
  KvRange others = final_.front();  // layers that the frame does not touch
  KvRange rest = {
      .layer = frame.layer, .first_token = frame.first_token + frame.tokens, .tokens = others.tokens - frame.tokens};
  final_.pop_front();
  others.layer += frame.layers;
  others.layers -= frame.layers;
  if (others.layers > 0) final_.push_front(others);
  rest_of_layer_ = rest.tokens > 0;
  if (rest_of_layer_) final_.push_front(rest);
}

}  // namespace sluice::prefill
