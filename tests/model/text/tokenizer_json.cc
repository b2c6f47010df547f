#include "tests/model/text/tokenizer_json.h"

#include <fstream>

#include "nlohmann/json.hpp"

namespace sluice {

namespace {
using Json = nlohmann::ordered_json;
constexpr char kGpt2Pattern[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

void ReadPreTokenizer(const Json& step, TokenizerData& data) {
  const std::string type = step["type"];
  if (type == "Sequence") {
    for (const Json& inner : step["pretokenizers"]) ReadPreTokenizer(inner, data);
  } else if (type == "Split") {
    data.split_patterns.push_back(step["pattern"]["Regex"]);
  } else if (type == "Digits") {
    data.split_patterns.push_back("\\p{N}");
  } else if (type == "ByteLevel" && step["use_regex"]) {
    data.split_patterns.push_back(kGpt2Pattern);
  }
}

void Place(TokenId id, const std::string& text, TokenizerData& data) {
  if (data.tokens.size() <= static_cast<size_t>(id)) data.tokens.resize(id + 1);
  data.tokens[id] = text;
}
}  // namespace

TokenizerData TokenizerDataFromJson(const std::string& path) {
  std::ifstream in(path);
  const Json json = Json::parse(in);
  TokenizerData data;
  if (json["model"]["byte_fallback"]) {
    data.unsupported = "tokenizer: only byte-level BPE is supported, not byte fallback";
    return data;
  }
  data.kind = TokenizerKind::kByteLevelBpe;
  data.ignore_merges = json["model"]["ignore_merges"];
  data.nfc = !json["normalizer"].is_null();
  for (const auto& [text, id] : json["model"]["vocab"].items()) Place(id, text, data);
  for (const Json& merge : json["model"]["merges"]) data.merges.emplace_back(merge[0], merge[1]);
  for (const Json& token : json["added_tokens"]) {
    Place(token["id"], token["content"], data);
    data.added.push_back({token["id"], token["content"], token["special"], token["lstrip"], token["rstrip"],
                          token["normalized"], token["single_word"]});
  }
  ReadPreTokenizer(json["pre_tokenizer"], data);
  return data;
}

}  // namespace sluice
