#include "cli/eval_input.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "eval/needle_text.h"
#include "eval/sample_text.h"
#include "model/text/chat_template.h"
#include "model/text/tokenizer.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

using nlohmann::json;

StatusOr<std::string> ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file.good()) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  return text.str();
}

class InputReader {
 public:
  InputReader(const EvalFlags& flags, const Checkpoint& checkpoint) : flags_(flags), checkpoint_(checkpoint) {}

  StatusOr<EvalInput> Read() {
    const TokenizerData& data = checkpoint_.tokenizer();
    if (data.kind != TokenizerKind::kNone) {
      SLUICE_ASSIGN_OR_RETURN(tokenizer_, Tokenizer::Create(data));
    }
    if (!flags_.input_file.empty()) {
      SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadText(flags_.input_file));
      given_ = json::parse(text, nullptr, /*allow_exceptions=*/false);
      if (!given_.is_object()) {
        return absl::InvalidArgumentError(absl::StrCat(flags_.input_file, " is not a JSON object"));
      }
      SLUICE_RETURN_IF_ERROR(CheckMembers());
    }
    EvalInput input;
    if (flags_.part("perplexity") || flags_.part("agreement")) {
      SLUICE_ASSIGN_OR_RETURN(input.windows, Windows());
    }
    if (flags_.part("stream")) {
      SLUICE_ASSIGN_OR_RETURN(input.stream, Stream());
    }
    if (flags_.part("needles")) {
      SLUICE_ASSIGN_OR_RETURN(input.needles, Needles());
    }
    return input;
  }

 private:
  // Whoever mistypes a name must not get figures of a generated text.
  Status CheckMembers() const {
    for (const auto& [name, value] : given_.items()) {
      if (name == "text" || name == "stream" || name == "needles") continue;
      return absl::InvalidArgumentError(
          absl::StrCat(flags_.input_file, " has the member \"", name, "\", there are text, stream and needles"));
    }
    return absl::OkStatus();
  }

  Status NeedTokenizer(std::string_view what) const {
    if (tokenizer_ != nullptr) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat(std::string(what), " has to come as token ids in --input: ", checkpoint_.tokenizer().unsupported));
  }

  StatusOr<std::vector<TokenId>> Ids(const json& value, const std::string& name) const {
    std::vector<TokenId> ids;
    if (value.is_string()) {
      SLUICE_RETURN_IF_ERROR(NeedTokenizer(name));
      return tokenizer_->Encode(value.get<std::string>(), Tokenizer::SpecialTokens::kParse);
    }
    const auto is_id = [&](const json& id) {
      return id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() < checkpoint_.config().vocab_size;
    };
    if (!value.is_array() || !std::all_of(value.begin(), value.end(), is_id)) {
      return absl::InvalidArgumentError(absl::StrCat(flags_.input_file, ": ", name,
                                                     " is neither a string nor an array of token ids below ",
                                                     checkpoint_.config().vocab_size));
    }
    value.get_to(ids);
    return ids;
  }

  // A text as a user gives it, or about `tokens` tokens of a generated one.
  StatusOr<std::vector<TokenId>> OwnText(int64_t tokens) const {
    SLUICE_RETURN_IF_ERROR(NeedTokenizer("text"));
    std::string text;
    if (flags_.text_file.empty()) {
      text = SampleText(flags_.seed, tokens);  // there are more tokens than words
    } else {
      SLUICE_ASSIGN_OR_RETURN(text, ReadText(flags_.text_file));
    }
    return tokenizer_->Encode(text, Tokenizer::SpecialTokens::kAsText);
  }

  StatusOr<std::vector<std::vector<TokenId>>> Windows() const {
    const int64_t trained = checkpoint_.config().context_tokens_max;
    if (flags_.context > trained) {
      return absl::InvalidArgumentError(absl::StrCat("--context is ", flags_.context, ", the model's context is ",
                                                     trained, " tokens: --parts stream measures what lies beyond"));
    }
    std::vector<TokenId> ids;
    const bool given = given_.contains("text");
    if (given) {
      SLUICE_ASSIGN_OR_RETURN(ids, Ids(given_["text"], "text"));
    } else {
      SLUICE_ASSIGN_OR_RETURN(ids, OwnText(flags_.context * flags_.windows));
    }
    // A model that wants its BOS gets it in each window.
    const size_t bos = !given && tokenizer_->add_bos() ? 1 : 0;
    const size_t tokens = static_cast<size_t>(flags_.context) - bos;
    std::vector<std::vector<TokenId>> windows;
    for (size_t at = 0; at + tokens <= ids.size() && windows.size() < static_cast<size_t>(flags_.windows);
         at += tokens) {
      std::vector<TokenId>& window = windows.emplace_back();
      if (bos > 0) window.push_back(tokenizer_->bos_id());
      window.insert(window.end(), ids.begin() + static_cast<ptrdiff_t>(at),
                    ids.begin() + static_cast<ptrdiff_t>(at + tokens));
    }
    if (!windows.empty()) return windows;
    return absl::InvalidArgumentError(
        absl::StrCat("the text has ", ids.size(), " tokens, fewer than --context ", flags_.context));
  }

  StatusOr<std::vector<TokenId>> Stream() const {
    const int64_t context = checkpoint_.config().context_tokens_max;
    const int64_t wanted = flags_.stream_tokens > 0 ? flags_.stream_tokens : context + context / 4;
    std::vector<TokenId> ids;
    if (given_.contains("stream")) {
      SLUICE_ASSIGN_OR_RETURN(ids, Ids(given_["stream"], "stream"));
    } else {
      SLUICE_ASSIGN_OR_RETURN(ids, OwnText(wanted));
      if (tokenizer_->add_bos()) ids.insert(ids.begin(), tokenizer_->bos_id());
    }
    if (static_cast<int64_t>(ids.size()) > wanted) ids.resize(static_cast<size_t>(wanted));
    if (ids.size() >= 2) return ids;
    return absl::InvalidArgumentError("the text of the stream has fewer than two tokens");
  }

  StatusOr<std::vector<NeedlePrompt>> Needles() const {
    if (given_.contains("needles")) return GivenNeedles();
    SLUICE_RETURN_IF_ERROR(NeedTokenizer("needles"));
    const TokenizerData& data = checkpoint_.tokenizer();
    std::unique_ptr<ChatTemplate> chat_template;
    if (!data.chat_template.empty()) {
      SLUICE_ASSIGN_OR_RETURN(chat_template, ChatTemplate::Parse(data.chat_template));
    }
    const PromptForm form = {tokenizer_.get(), chat_template.get(), data.bos_text, data.eos_text};
    return MakeNeedlePrompts(form, flags_.seed, flags_.lengths, flags_.needles);
  }

  StatusOr<std::vector<NeedlePrompt>> GivenNeedles() const {
    const json& given = given_["needles"];
    std::vector<NeedlePrompt> prompts;
    for (size_t i = 0; i < given.size() && prompts.size() < static_cast<size_t>(flags_.needles); ++i) {
      NeedlePrompt& prompt = prompts.emplace_back();
      const std::pair<const char*, std::vector<TokenId>*> fields[] = {
          {"context", &prompt.context}, {"question", &prompt.question}, {"answer", &prompt.answer}};
      for (const auto& [name, ids] : fields) {
        const std::string path = absl::StrCat("needles[", i, "].", name);
        const json value = given.is_array() && given[i].is_object() ? given[i].value(name, json()) : json();
        SLUICE_ASSIGN_OR_RETURN(*ids, Ids(value, path));
        if (ids->empty()) return absl::InvalidArgumentError(absl::StrCat(flags_.input_file, ": ", path, " is empty"));
      }
      const json depth = given[i].value("depth", json(0.0));
      const json length = given[i].value("length", json(prompt.context.size()));
      if (!depth.is_number() || depth.get<double>() < 0 || depth.get<double>() > 1 || !length.is_number_integer()) {
        return absl::InvalidArgumentError(
            absl::StrCat(flags_.input_file, ": needles[", i, "] has no such depth or length"));
      }
      prompt.depth = depth.get<double>();
      prompt.length = length.get<int64_t>();
    }
    if (prompts.empty()) return absl::InvalidArgumentError(absl::StrCat(flags_.input_file, ": needles is empty"));
    return prompts;
  }

  const EvalFlags& flags_;
  const Checkpoint& checkpoint_;
  std::unique_ptr<Tokenizer> tokenizer_;  // null where the model has none
  json given_ = json::object();
};

}  // namespace

StatusOr<EvalInput> ReadEvalInput(const EvalFlags& flags, const Checkpoint& checkpoint) {
  return InputReader(flags, checkpoint).Read();
}

}  // namespace sluice
