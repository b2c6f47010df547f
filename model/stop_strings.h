// Finds stop strings in text that comes in parts, and holds back exactly what may still become one: the longest end of
// the text that begins a stop string. Where the parts' borders lie makes no difference.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sluice {

class StopStrings {
 public:
  explicit StopStrings(const std::vector<std::string>& strings);  // each not empty

  struct Fed {
    std::string sendable;  // known to belong to no stop string
    int match = -1;        // the stop string that is complete now; the longest of several that end together
  };
  // Goes on with `text`. Ends at the first stop string to be complete: what follows it is dropped, and so is the stop
  // string itself. Where matches are not `allowed` they are ordinary text.
  // REQUIRES: no match so far.
  Fed Feed(std::string_view text, bool allowed);

  // What is held back. At the end of the text it is sendable after all.
  const std::string& held() const { return held_; }
  std::string TakeHeld();

 private:
  struct Pattern {
    std::string text;
    std::vector<int> border;  // border[k]: longest proper border of the first k bytes (Knuth, Morris, Pratt 1977)
    int matched = 0;          // bytes of it that the text ends in
  };
  std::vector<Pattern> patterns_;
  std::string held_;
};

}  // namespace sluice
