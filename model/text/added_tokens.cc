#include "model/text/added_tokens.h"

#include <algorithm>

#include "model/text/unicode.h"
#include "model/text/utf8.h"

namespace sluice {

namespace {
// Where the character before `end` begins.
size_t PreviousChar(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return begin;
}

bool StandsAlone(std::string_view text, size_t begin, size_t end) {
  if (begin > 0 && IsWordChar(FirstChar(text.substr(PreviousChar(text, begin))).code_point)) return false;
  return end == text.size() || !IsWordChar(FirstChar(text.substr(end)).code_point);
}
}  // namespace

void AddedTokens::Insert(const AddedToken& token) {
  int node = 0;
  for (const char c : token.text) {
    const auto byte = static_cast<unsigned char>(c);
    int child = -1;
    for (const auto& [label, index] : nodes_[node].children) {
      if (label == byte) child = index;
    }
    if (child < 0) {
      child = static_cast<int>(nodes_.size());
      nodes_[node].children.emplace_back(byte, child);
      nodes_.emplace_back();
    }
    node = child;
  }
  // Of two tokens with one text the first counts.
  if (nodes_[node].token >= 0) return;
  nodes_[node].token = static_cast<int>(tokens_.size());
  starts_[static_cast<unsigned char>(token.text[0])] = true;
  tokens_.push_back(token);
}

AddedTokens::Found AddedTokens::LongestAt(std::string_view text) const {
  Found found;
  int node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto& children = nodes_[node].children;
    const auto it = std::find_if(children.begin(), children.end(), [&](const auto& c) { return c.first == byte; });
    if (it == children.end()) break;
    node = it->second;
    if (nodes_[node].token >= 0) found = {i + 1, nodes_[node].token};
  }
  return found;
}

std::vector<AddedTokens::Part> AddedTokens::Split(std::string_view text) const {
  std::vector<Part> parts;
  size_t done = 0;
  for (size_t i = 0; !tokens_.empty() && i < text.size();) {
    if (!starts_[static_cast<unsigned char>(text[i])]) {
      ++i;
      continue;
    }
    const Found found = LongestAt(text.substr(i));
    if (found.token < 0) {
      ++i;
      continue;
    }
    const AddedToken& token = tokens_[found.token];
    size_t begin = i, end = i + found.bytes;
    i = end;
    if (token.single_word && !StandsAlone(text, begin, end)) continue;
    while (token.lstrip && begin > done) {
      const size_t before = PreviousChar(text, begin);
      if (!IsWhiteSpace(FirstChar(text.substr(before)).code_point)) break;
      begin = before;
    }
    while (token.rstrip && end < text.size()) {
      const Utf8Char c = FirstChar(text.substr(end));
      if (!IsWhiteSpace(c.code_point)) break;
      end += c.bytes;
    }
    if (begin > done) parts.push_back({text.substr(done, begin - done), -1});
    parts.push_back({{}, token.id});
    done = i = end;
  }
  if (done < text.size()) parts.push_back({text.substr(done), -1});
  return parts;
}

}  // namespace sluice
