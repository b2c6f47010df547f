#include "gateway/served_model.h"

#include <algorithm>
#include <filesystem>

#include "model/checkpoint/checkpoint.h"

namespace sluice {

namespace {

std::string NameOf(const std::string& path) {
  std::filesystem::path file(path);
  if (!file.has_filename()) file = file.parent_path();  // "folder/"
  return file.extension() == ".gguf" ? file.stem().string() : file.filename().string();
}

}  // namespace

StatusOr<ServedModel> OpenServedModel(const std::string& path, const std::string& name) {
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, OpenCheckpoint(path));
  const TokenizerData& data = checkpoint->tokenizer();
  ServedModel model;
  model.name = name.empty() ? NameOf(path) : name;
  model.model_hash = checkpoint->model_hash();
  model.vocab_size = checkpoint->config().vocab_size;
  model.context_tokens_max = checkpoint->config().context_tokens_max;
  StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Create(data);
  if (tokenizer.ok()) {
    model.tokenizer = *std::move(tokenizer);
    // Normalising to NFC shortens text, so there the bound would not be one.
    for (TokenId id = 0; !data.nfc && id < model.tokenizer->vocab_size(); ++id) {
      model.token_bytes_max = std::max(model.token_bytes_max, model.tokenizer->Bytes(id, /*show_special=*/true).size());
    }
  } else {
    model.no_tokenizer = std::string(tokenizer.status().message());
  }
  if (data.chat_template.empty()) {
    model.no_chat_template = "the model has no chat template";
  } else {
    StatusOr<std::unique_ptr<ChatTemplate>> parsed = ChatTemplate::Parse(data.chat_template);
    if (parsed.ok()) {
      model.chat_template = *std::move(parsed);
    } else {
      model.no_chat_template = absl::StrCat("the model's chat template is not understood: ", parsed.status().message());
    }
  }
  model.bos_text = data.bos_text;
  model.eos_text = data.eos_text;
  for (const AddedToken& token : data.added) {
    if (token.special && !token.text.empty()) model.special_texts.push_back(token.text);
  }
  return model;
}

}  // namespace sluice
