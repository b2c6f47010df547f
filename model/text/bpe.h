// Byte-pair merging of one piece: bytes to ids by merges of lowest rank first. Near linear in the piece (a heap of
// candidate pairs over a linked list of symbols), since a client may send one piece of a megabyte. Immutable.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/ids.h"
#include "common/status.h"
#include "model/checkpoint/tokenizer_data.h"

namespace sluice {

class Bpe {
 public:
  // InvalidArgument for a merge whose parts or result are no tokens.
  static StatusOr<Bpe> Create(const TokenizerData& data);

  // Working memory that calls share, so that a text of many pieces allocates once.
  struct Scratch {
    struct Symbol {
      TokenId id;
      int32_t previous;  // -1: none
      int32_t next;      // -1: none
    };
    struct Candidate {
      int32_t rank;
      int32_t position;  // of the left symbol
      TokenId left, right;
      TokenId merged;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  // Appends the ids of `piece`, bytes. Bytes without a token become the unknown token where there is one, and vanish
  // otherwise, as in the reference.
  void Encode(std::string_view piece, Scratch& scratch, std::vector<TokenId>& out) const;

 private:
  struct Merge {
    int32_t rank;
    TokenId merged;
  };
  static uint64_t Key(TokenId left, TokenId right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  void Propose(const std::vector<Scratch::Symbol>& symbols, int32_t left, std::vector<Scratch::Candidate>& heap) const;

  std::array<TokenId, 256> of_byte_{};  // -1: none
  absl::flat_hash_map<uint64_t, Merge> merges_;
  absl::flat_hash_map<std::string, TokenId> whole_;  // bytes -> id, where a piece may be a token without merges
  bool ignore_merges_ = false;
};

}  // namespace sluice
