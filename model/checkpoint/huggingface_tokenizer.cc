#include "model/checkpoint/huggingface_tokenizer.h"

#include "absl/strings/ascii.h"
#include "model/checkpoint/json_text.h"
#include "model/checkpoint/pre_tokenizer.h"

namespace sluice {
namespace {

using nlohmann::json;

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

// Why a part of the tokenizer is not supported; empty where it is. Kept apart from errors: a model whose tokenizer is
// unknown can still be run on token ids.
using Reason = std::string;

std::string TypeOf(const json& object) {
  const auto found = object.find("type");
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

bool IsTrue(const json& object, const char* field, bool otherwise) {
  const auto found = object.find(field);
  return found != object.end() && found->is_boolean() ? found->get<bool>() : otherwise;
}

std::string EscapedForPcre(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (absl::ascii_isascii(static_cast<unsigned char>(c)) && !absl::ascii_isalnum(static_cast<unsigned char>(c))) {
      escaped += '\\';
    }
    escaped += c;
  }
  return escaped;
}

class PreTokenizerReader {
 public:
  explicit PreTokenizerReader(TokenizerData* data) : data_(*data) {}

  Reason Read(const json& object) {
    if (!object.is_object()) return "the pre_tokenizer is missing";
    Reason reason = Step(object);
    if (reason.empty() && !byte_level_) reason = "the pre_tokenizer has no ByteLevel step";
    return reason;
  }

 private:
  Reason Step(const json& object) {
    if (byte_level_) return "the pre_tokenizer goes on after its ByteLevel step";
    const std::string type = object.is_object() ? TypeOf(object) : "";
    if (type == "Sequence") return Sequence(object);
    if (type == "Split") return Split(object);
    if (type == "Digits") {
      data_.split_patterns.push_back(IsTrue(object, "individual_digits", false) ? R"re(\p{N})re" : R"re(\p{N}+)re");
      return "";
    }
    if (type == "ByteLevel") return ByteLevel(object);
    return absl::StrCat("the pre_tokenizer step \"", type, "\" is not supported");
  }

  Reason Sequence(const json& object) {
    const auto steps = object.find("pretokenizers");
    if (steps == object.end() || !steps->is_array()) return "a pre_tokenizer Sequence has no pretokenizers";
    for (const json& step : *steps) {
      Reason reason = Step(step);
      if (!reason.empty()) return reason;
    }
    return "";
  }

  Reason Split(const json& object) {
    const auto behavior = object.find("behavior");
    if (behavior == object.end() || *behavior != "Isolated" || IsTrue(object, "invert", false)) {
      return "a pre_tokenizer Split has another behavior than Isolated";
    }
    const auto pattern = object.find("pattern");
    if (pattern == object.end() || !pattern->is_object()) return "a pre_tokenizer Split has no pattern";
    if (const auto regex = pattern->find("Regex"); regex != pattern->end() && regex->is_string()) {
      data_.split_patterns.push_back(regex->get<std::string>());
    } else if (const auto text = pattern->find("String"); text != pattern->end() && text->is_string()) {
      data_.split_patterns.push_back(EscapedForPcre(text->get_ref<const std::string&>()));
    } else {
      return "a pre_tokenizer Split has a pattern that is neither Regex nor String";
    }
    return "";
  }

  Reason ByteLevel(const json& object) {
    if (IsTrue(object, "add_prefix_space", true)) return "the ByteLevel step adds a space before the text";
    if (IsTrue(object, "use_regex", true)) data_.split_patterns.emplace_back(kGpt2Pattern);
    byte_level_ = true;
    return "";
  }

  TokenizerData& data_;
  bool byte_level_ = false;
};

Reason ReadNormalizer(const json& object, TokenizerData& data) {
  if (object.is_null()) return "";
  const std::string type = object.is_object() ? TypeOf(object) : "";
  if (type == "NFC") {
    data.nfc = true;
    return "";
  }
  const auto steps = type == "Sequence" ? object.find("normalizers") : object.end();
  if (type != "Sequence" || steps == object.end() || !steps->is_array()) {
    return absl::StrCat("the normalizer \"", type, "\" is not supported");
  }
  for (const json& step : *steps) {
    Reason reason = ReadNormalizer(step, data);
    if (!reason.empty()) return reason;
  }
  return "";
}

Reason CheckModel(const json& model) {
  const std::string type = TypeOf(model);
  if (type != "BPE" && !(type.empty() && model.contains("merges"))) {
    return absl::StrCat("the tokenizer model \"", type, "\" is not supported, only byte-level BPE is");
  }
  if (IsTrue(model, "byte_fallback", false))
    return "the tokenizer is BPE with byte fallback, only byte-level BPE is supported";
  for (const char* field : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto found = model.find(field);
    if (found != model.end() && !found->is_null() && *found != "") {
      return absl::StrCat("the tokenizer model has a ", field);
    }
  }
  const auto dropout = model.find("dropout");
  if (dropout != model.end() && !dropout->is_null() && *dropout != 0.0) return "the tokenizer model has a dropout";
  return "";
}

class TokenizerJsonReader {
 public:
  TokenizerJsonReader(const json* object, std::string name, int vocab_size, TokenizerData* data)
      : fields_(object, name), vocab_size_(vocab_size), data_(*data) {}

  Status Run() {
    SLUICE_ASSIGN_OR_RETURN(const auto model, fields_.Object("model"));
    if (!model) return fields_.Error("model", "is missing");
    data_.tokens.resize(static_cast<size_t>(vocab_size_));
    SLUICE_RETURN_IF_ERROR(Vocabulary(*model));
    SLUICE_RETURN_IF_ERROR(AddedTokens());
    Unknown(*model);
    BeginToken();
    const json none;
    const json* normalizer = fields_.Find("normalizer");
    const json* pre_tokenizer = fields_.Find("pre_tokenizer");
    data_.unsupported = CheckModel(*model->object());
    if (data_.unsupported.empty()) data_.unsupported = ReadNormalizer(normalizer ? *normalizer : none, data_);
    if (data_.unsupported.empty()) {
      data_.unsupported = PreTokenizerReader(&data_).Read(pre_tokenizer ? *pre_tokenizer : none);
    }
    if (!data_.unsupported.empty()) return absl::OkStatus();
    SLUICE_RETURN_IF_ERROR(Merges(*model));
    SLUICE_ASSIGN_OR_RETURN(const auto ignore_merges, model->Bool("ignore_merges"));
    data_.ignore_merges = ignore_merges.value_or(false);
    data_.kind = TokenizerKind::kByteLevelBpe;
    return absl::OkStatus();
  }

  // The id of the token spelled `text`.
  std::optional<TokenId> IdOf(std::string_view text) const {
    for (const AddedToken& added : data_.added) {
      if (added.text == text) return added.id;
    }
    for (size_t id = 0; id < data_.tokens.size(); ++id) {
      if (!text.empty() && data_.tokens[id] == text) return static_cast<TokenId>(id);
    }
    return std::nullopt;
  }

 private:
  Status CheckId(std::string_view text, const json& id) const {
    if (id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(vocab_size_)) return absl::OkStatus();
    return fields_.Error("token", absl::StrCat("\"", View(text), "\" has an id that is not below vocab_size (",
                                               vocab_size_, ") of config.json"));
  }

  Status Vocabulary(const JsonFields& model) {
    SLUICE_ASSIGN_OR_RETURN(const auto vocabulary, model.Object("vocab"));
    if (!vocabulary) return absl::OkStatus();  // Unigram keeps a list; CheckModel refuses it
    for (const auto& [text, id] : vocabulary->object()->items()) {
      SLUICE_RETURN_IF_ERROR(CheckId(text, id));
      std::string& token = data_.tokens[id.get<size_t>()];
      if (!token.empty()) {
        return model.Error("vocab",
                           absl::StrCat("gives id ", id.get<size_t>(), " to \"", token, "\" and \"", text, "\""));
      }
      token = text;
    }
    return absl::OkStatus();
  }

  Status AddedTokens() {
    const json* added = fields_.Find("added_tokens");
    if (added == nullptr) return absl::OkStatus();
    if (!added->is_array()) return fields_.Error("added_tokens", "is not a list");
    for (const json& entry : *added) {
      if (!entry.is_object() || !entry.contains("id") || !entry.contains("content") || !entry["content"].is_string()) {
        return fields_.Error("added_tokens", "has an entry without id and content");
      }
      const std::string& text = entry["content"].get_ref<const std::string&>();
      SLUICE_RETURN_IF_ERROR(CheckId(text, entry["id"]));
      const TokenId id = entry["id"].get<TokenId>();
      data_.tokens[static_cast<size_t>(id)] = text;
      data_.added.push_back({.id = id,
                             .text = text,
                             .special = IsTrue(entry, "special", false),
                             .lstrip = IsTrue(entry, "lstrip", false),
                             .rstrip = IsTrue(entry, "rstrip", false),
                             .normalized = IsTrue(entry, "normalized", false),
                             .single_word = IsTrue(entry, "single_word", false)});
    }
    return absl::OkStatus();
  }

  // Either "a b" or ["a", "b"], the spelling that newer versions write.
  Status Merges(const JsonFields& model) {
    const json* merges = model.Find("merges");
    if (merges == nullptr || !merges->is_array()) return model.Error("merges", "is not a list");
    data_.merges.reserve(merges->size());
    for (const json& merge : *merges) {
      if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        data_.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
        continue;
      }
      const std::string text = merge.is_string() ? merge.get<std::string>() : "";
      const size_t space = text.find(' ');
      if (space == std::string::npos || space == 0 || space + 1 == text.size()) {
        return model.Error("merges", absl::StrCat("entry ", data_.merges.size(), " is not a pair of pieces"));
      }
      data_.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    }
    return absl::OkStatus();
  }

  void Unknown(const JsonFields& model) {
    const json* unknown = model.Find("unk_token");
    if (unknown != nullptr && unknown->is_string()) data_.unk_id = IdOf(unknown->get_ref<const std::string&>());
  }

  // A TemplateProcessing post-processor that begins with a special token puts BOS before the text.
  void BeginToken() {
    const json* processor = fields_.Find("post_processor");
    if (processor == nullptr || !processor->is_object()) return;
    BeginTokenOf(*processor);
    const auto parts = processor->find("processors");
    if (parts == processor->end() || !parts->is_array()) return;
    for (const json& part : *parts) {
      if (part.is_object()) BeginTokenOf(part);
    }
  }

  void BeginTokenOf(const json& processor) {
    const auto single = processor.find("single");
    if (TypeOf(processor) != "TemplateProcessing" || single == processor.end() || !single->is_array()) return;
    if (single->empty() || !(*single)[0].is_object()) return;
    const auto special = (*single)[0].find("SpecialToken");
    if (special == (*single)[0].end() || !special->is_object()) return;
    const auto text = special->find("id");
    if (text == special->end() || !text->is_string()) return;
    data_.bos_id = IdOf(text->get_ref<const std::string&>());
    data_.add_bos = data_.bos_id.has_value();
  }

  JsonFields fields_;
  int vocab_size_;
  TokenizerData& data_;
};

// bos_token and eos_token: a string, or an added token's object with its content.
StatusOr<std::string> TokenText(const JsonFields& fields, std::string_view field) {
  const json* value = fields.Find(field);
  if (value == nullptr) return std::string();
  if (value->is_string()) return value->get<std::string>();
  if (value->is_object() && value->contains("content") && (*value)["content"].is_string()) {
    return (*value)["content"].get<std::string>();
  }
  return fields.Error(field, "is neither a string nor an object with a content");
}

// chat_template: a string, or a list of named ones, of which "default" is taken.
StatusOr<std::string> ChatTemplateText(const JsonFields& fields) {
  const json* value = fields.Find("chat_template");
  if (value == nullptr) return std::string();
  if (value->is_string()) return value->get<std::string>();
  if (!value->is_array()) return fields.Error("chat_template", "is neither a string nor a list");
  for (const json& entry : *value) {
    const bool named = entry.is_object() && entry.contains("name") && entry.contains("template");
    if (!named || !entry["template"].is_string()) {
      return fields.Error("chat_template", "has an entry without name and template");
    }
    if (entry["name"] == "default") return entry["template"].get<std::string>();
  }
  return std::string();
}

}  // namespace

StatusOr<TokenizerData> ReadHuggingFaceTokenizer(const HuggingFaceTokenizerTexts& texts, int vocab_size,
                                                 std::optional<TokenId> config_bos_id, const std::string& folder) {
  TokenizerData data;
  data.chat_template = std::string(texts.chat_template);
  if (texts.tokenizer.empty()) {
    data.unsupported = absl::StrCat(folder, " has no tokenizer.json");
    return data;
  }
  const std::string name = absl::StrCat(folder, "/tokenizer.json");
  SLUICE_ASSIGN_OR_RETURN(const json object, ParseJsonObject(texts.tokenizer, name));
  TokenizerJsonReader reader(&object, name, vocab_size, &data);
  SLUICE_RETURN_IF_ERROR(reader.Run());
  if (!texts.tokenizer_config.empty()) {
    const std::string config_name = absl::StrCat(folder, "/tokenizer_config.json");
    SLUICE_ASSIGN_OR_RETURN(const json config, ParseJsonObject(texts.tokenizer_config, config_name));
    const JsonFields fields(&config, config_name);
    SLUICE_ASSIGN_OR_RETURN(data.bos_text, TokenText(fields, "bos_token"));
    SLUICE_ASSIGN_OR_RETURN(data.eos_text, TokenText(fields, "eos_token"));
    if (const auto id = reader.IdOf(data.bos_text)) data.bos_id = id;
    data.eos_id = reader.IdOf(data.eos_text);
    if (data.chat_template.empty()) {
      SLUICE_ASSIGN_OR_RETURN(data.chat_template, ChatTemplateText(fields));
    }
  }
  if (!data.bos_id) data.bos_id = config_bos_id;
  return data;
}

}  // namespace sluice
