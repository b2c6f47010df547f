#include "model/text/bpe.h"

#include <algorithm>

#include "model/text/byte_alphabet.h"
#include "model/text/utf8.h"

namespace sluice {

StatusOr<Bpe> Bpe::Create(const TokenizerData& data) {
  Bpe bpe;
  bpe.ignore_merges_ = data.ignore_merges;
  absl::flat_hash_map<std::string_view, TokenId> by_spelling;
  by_spelling.reserve(data.tokens.size());
  // Of two tokens with one spelling the first wins; files pad their vocabularies with equal fillers.
  for (size_t id = 0; id < data.tokens.size(); ++id) by_spelling.emplace(data.tokens[id], static_cast<TokenId>(id));
  for (int byte = 0; byte < 256; ++byte) {
    std::string spelling;
    AppendUtf8(ByteStandIn(static_cast<unsigned char>(byte)), spelling);
    const auto it = by_spelling.find(spelling);
    bpe.of_byte_[byte] = it != by_spelling.end() ? it->second : data.unk_id.value_or(-1);
  }
  bpe.merges_.reserve(data.merges.size());
  for (size_t rank = 0; rank < data.merges.size(); ++rank) {
    const auto& [left, right] = data.merges[rank];
    const auto left_id = by_spelling.find(left), right_id = by_spelling.find(right),
               merged = by_spelling.find(left + right);
    if (left_id == by_spelling.end() || right_id == by_spelling.end() || merged == by_spelling.end()) {
      return absl::InvalidArgumentError(absl::StrCat("tokenizer: merge ", rank, " of '", left, "' and '", right,
                                                     "' needs a token that is not in the vocabulary"));
    }
    bpe.merges_.emplace(Key(left_id->second, right_id->second), Merge{static_cast<int32_t>(rank), merged->second});
  }
  if (data.ignore_merges) {
    for (const auto& [spelling, id] : by_spelling) {
      if (auto bytes = SpelledBytes(spelling)) bpe.whole_.emplace(*std::move(bytes), id);
    }
    for (const AddedToken& token : data.added) bpe.whole_.erase(token.text);
  }
  return bpe;
}

void Bpe::Propose(const std::vector<Scratch::Symbol>& symbols, int32_t left,
                  std::vector<Scratch::Candidate>& heap) const {
  if (left < 0 || symbols[left].next < 0) return;
  const TokenId left_id = symbols[left].id, right_id = symbols[symbols[left].next].id;
  const auto it = merges_.find(Key(left_id, right_id));
  if (it == merges_.end()) return;
  heap.push_back({it->second.rank, left, left_id, right_id, it->second.merged});
}

void Bpe::Encode(std::string_view piece, Scratch& scratch, std::vector<TokenId>& out) const {
  if (ignore_merges_) {
    if (const auto it = whole_.find(absl::string_view(piece.data(), piece.size())); it != whole_.end()) {
      out.push_back(it->second);
      return;
    }
  }
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  symbols.clear();
  heap.clear();
  for (const char c : piece) {
    const TokenId id = of_byte_[static_cast<unsigned char>(c)];
    if (id < 0) continue;
    const int32_t index = static_cast<int32_t>(symbols.size());
    if (index > 0) symbols[index - 1].next = index;
    symbols.push_back({id, index - 1, -1});
  }
  if (symbols.empty()) return;
  // Lowest rank on top, the leftmost of equals.
  const auto later = [](const Scratch::Candidate& a, const Scratch::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  };
  for (int32_t i = 0; i < static_cast<int32_t>(symbols.size()); ++i) Propose(symbols, i, heap);
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Scratch::Candidate best = heap.back();
    heap.pop_back();
    Scratch::Symbol& left = symbols[best.position];
    // A candidate is stale once either of its symbols was merged; merged-away symbols have id -1.
    if (left.id != best.left || left.next < 0 || symbols[left.next].id != best.right) continue;
    const int32_t gone = left.next;
    left.id = best.merged;
    left.next = symbols[gone].next;
    symbols[gone].id = -1;
    if (left.next >= 0) symbols[left.next].previous = best.position;
    for (const int32_t at : {left.previous, best.position}) {
      const size_t before = heap.size();
      Propose(symbols, at, heap);
      if (heap.size() > before) std::push_heap(heap.begin(), heap.end(), later);
    }
  }
  for (int32_t i = 0; i >= 0; i = symbols[i].next) out.push_back(symbols[i].id);
}

}  // namespace sluice
