// The KV of one transfer that has become final and has not left, and how it is cut into frames. Pure bookkeeping.
//
// Where frames begin and end depends on what became final in which order, and on the codec; not on time. A frame takes
// consecutive layers of the same tokens until it has bytes_min, or ends with the last layer: one layer of a short
// prompt is not worth a frame. A layer that is larger than bytes_max is cut by tokens, evenly.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <vector>

#include "model/kv_body.h"

namespace sluice::prefill {

struct FrameLimits {
  KvLayout layout;
  KvCodec codec = KvCodec::kBf16;  // on the wire
  size_t bytes_min = 0;
  size_t bytes_max = 0;  // holds one token of one layer
};

class FrameQueue {
 public:
  // Final KV, in the order in which it became final.
  void Add(const KvRange& range);
  // A frame that is wanted again: it goes as it is, before everything else.
  void AddAgain(const KvRange& frame) { again_.push_back(frame); }
  // Nothing is added any more but AddAgain: what waits for more layers may go. KV at or behind position `kv_tokens` is
  // not needed: it stays, unless frames of some of its layers have left, which the others then follow. Returns the
  // position up to which KV is sent in the end.
  int64_t Close(int64_t kv_tokens);

  // The next frame; nothing where there is none, or where it waits for more layers.
  std::optional<KvRange> Next(const FrameLimits& limits) const;
  // Takes out what Next returned with the same limits.
  void Pop(const KvRange& frame);

  // True where all of `range` has been added at once, sent or not.
  bool WasAdded(const KvRange& range) const;
  bool empty() const { return final_.empty() && again_.empty(); }

 private:
  std::deque<KvRange> final_;
  std::deque<KvRange> again_;
  std::vector<KvRange> added_;  // all that ever was, one range for each chunk of the prompt
  bool rest_of_layer_ = false;  // the first of final_ is what is left of a layer that was cut
  int64_t taken_end_ = 0;       // one past the last token of any frame that was taken
  bool closed_ = false;
};

}  // namespace sluice::prefill
