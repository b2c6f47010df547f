#include "model/stop_strings.h"

#include <algorithm>

namespace sluice {

StopStrings::StopStrings(const std::vector<std::string>& strings) {
  for (const std::string& text : strings) {
    Pattern pattern{text, std::vector<int>(text.size() + 1, 0), 0};
    for (size_t k = 1, border = 0; k < text.size(); ++k) {
      while (border > 0 && text[k] != text[border]) border = pattern.border[border];
      if (text[k] == text[border]) ++border;
      pattern.border[k + 1] = static_cast<int>(border);
    }
    patterns_.push_back(std::move(pattern));
  }
}

StopStrings::Fed StopStrings::Feed(std::string_view text, bool allowed) {
  Fed fed;
  for (const char byte : text) {
    held_ += byte;
    int longest = 0, complete = -1;
    for (size_t i = 0; i < patterns_.size(); ++i) {
      Pattern& p = patterns_[i];
      while (p.matched > 0 && p.text[p.matched] != byte) p.matched = p.border[p.matched];
      if (p.text[p.matched] == byte) ++p.matched;
      if (p.matched == static_cast<int>(p.text.size())) {
        if (complete < 0 || p.text.size() > patterns_[complete].text.size()) complete = static_cast<int>(i);
        p.matched = p.border[p.matched];
      }
      longest = std::max(longest, p.matched);
    }
    if (complete >= 0 && allowed) {
      fed.match = complete;
      held_.resize(held_.size() - patterns_[complete].text.size());
      break;
    }
    if (held_.size() > static_cast<size_t>(longest)) {
      const size_t free = held_.size() - longest;
      fed.sendable.append(held_, 0, free);
      held_.erase(0, free);
    }
  }
  if (fed.match >= 0) fed.sendable += TakeHeld();
  return fed;
}

std::string StopStrings::TakeHeld() {
  std::string held = std::move(held_);
  held_.clear();
  for (Pattern& p : patterns_) p.matched = 0;
  return held;
}

}  // namespace sluice
