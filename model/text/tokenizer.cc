#include "model/text/tokenizer.h"

#include <utility>

#include "model/text/added_tokens.h"
#include "model/text/bpe.h"
#include "model/text/byte_alphabet.h"
#include "model/text/text_splitter.h"
#include "model/text/unicode.h"
#include "model/text/utf8.h"

namespace sluice {

namespace {

class ByteLevelTokenizer final : public Tokenizer {
 public:
  ByteLevelTokenizer(const TokenizerData& data, Bpe bpe, TextSplitter text_splitter)
      : bpe_(std::move(bpe)),
        splitter_(std::move(text_splitter)),
        matchers_{{Matcher(data, false, false), Matcher(data, true, false)},
                  {Matcher(data, false, true), Matcher(data, true, true)}},
        nfc_(data.nfc),
        add_bos_(data.add_bos),
        bos_id_(data.bos_id.value_or(-1)),
        bytes_(data.tokens.size()),
        is_special_(data.tokens.size(), false) {
    for (size_t id = 0; id < data.tokens.size(); ++id) {
      // A piece that is not all stand-ins spells itself, as in the reference.
      auto bytes = SpelledBytes(data.tokens[id]);
      bytes_[id] = bytes ? *std::move(bytes) : data.tokens[id];
    }
    for (const AddedToken& token : data.added) {
      bytes_[token.id] = token.text;
      is_special_[token.id] = token.special;
    }
  }

  std::vector<TokenId> Encode(std::string_view text, SpecialTokens special) const override {
    std::string repaired;
    if (!IsValidUtf8(text)) {
      repaired = ReplaceInvalid(text);
      text = repaired;
    }
    const bool parse = special == SpecialTokens::kParse;
    std::vector<TokenId> ids;
    ids.reserve(text.size() / 4 + 1);
    Bpe::Scratch scratch;
    for (const AddedTokens::Part& part : matchers_[0][parse].Split(text)) {
      if (part.id >= 0) {
        ids.push_back(part.id);
      } else {
        EncodePlain(part.text, parse, scratch, ids);
      }
    }
    return ids;
  }

  std::string_view Bytes(TokenId id, bool show_special) const override {
    return is_special_[id] && !show_special ? std::string_view() : std::string_view(bytes_[id]);
  }
  bool IsSpecial(TokenId id) const override { return is_special_[id]; }
  int vocab_size() const override { return static_cast<int>(bytes_.size()); }
  bool add_bos() const override { return add_bos_; }
  TokenId bos_id() const override { return bos_id_; }

 private:
  // The tokens that are looked for before (or, `normalized`, after) the normaliser; special ones only where parsed.
  static AddedTokens Matcher(const TokenizerData& data, bool parse_special, bool normalized) {
    return AddedTokens(data.added, [&](const AddedToken& token) {
      return (parse_special || !token.special) && (token.normalized && data.nfc) == normalized;
    });
  }

  void EncodePlain(std::string_view text, bool parse, Bpe::Scratch& scratch, std::vector<TokenId>& ids) const {
    std::string normal;
    if (nfc_) {
      normal = Nfc(text);
      text = normal;
    }
    for (const AddedTokens::Part& part : matchers_[1][parse].Split(text)) {
      if (part.id >= 0) {
        ids.push_back(part.id);
        continue;
      }
      for (const std::string_view piece : splitter_.Split(part.text)) bpe_.Encode(piece, scratch, ids);
    }
  }

  Bpe bpe_;
  TextSplitter splitter_;
  AddedTokens matchers_[2][2];  // [after the normaliser][special ones too]
  bool nfc_;
  bool add_bos_;
  TokenId bos_id_;
  std::vector<std::string> bytes_;
  std::vector<bool> is_special_;
};

Status CheckIds(const TokenizerData& data) {
  const auto check = [&](absl::string_view what, TokenId id) -> Status {
    if (id >= 0 && static_cast<size_t>(id) < data.tokens.size()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer: ", what, " has id ", id, ", but the vocabulary has ", data.tokens.size(), " tokens"));
  };
  for (const AddedToken& token : data.added) SLUICE_RETURN_IF_ERROR(check("an added token", token.id));
  if (data.bos_id) SLUICE_RETURN_IF_ERROR(check("the first token of a text (bos)", *data.bos_id));
  if (data.eos_id) SLUICE_RETURN_IF_ERROR(check("the last token of a text (eos)", *data.eos_id));
  if (data.unk_id) SLUICE_RETURN_IF_ERROR(check("the unknown token", *data.unk_id));
  if (data.add_bos && !data.bos_id) {
    return absl::InvalidArgumentError("tokenizer: texts are to begin with a token (bos) whose id is not given");
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(const TokenizerData& data) {
  if (data.kind == TokenizerKind::kNone) {
    return absl::FailedPreconditionError(data.unsupported.empty() ? "the checkpoint holds no tokenizer"
                                                                  : data.unsupported);
  }
  if (data.tokens.empty()) return absl::InvalidArgumentError("tokenizer: the vocabulary is empty");
  SLUICE_RETURN_IF_ERROR(CheckIds(data));
  SLUICE_ASSIGN_OR_RETURN(Bpe bpe, Bpe::Create(data));
  SLUICE_ASSIGN_OR_RETURN(TextSplitter text_splitter, TextSplitter::Create(data));
  return std::make_unique<ByteLevelTokenizer>(data, std::move(bpe), std::move(text_splitter));
}

}  // namespace sluice
