// What the gateway needs of a model: how to turn text into ids, and its limits. Immutable after opening, so any thread
// may use it. The weights are not kept.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "model/text/chat_template.h"
#include "model/text/tokenizer.h"

namespace sluice {

struct ServedModel {
  std::string name;  // what clients call it
  std::string model_hash;
  int vocab_size = 0;
  int64_t context_tokens_max = 0;

  std::unique_ptr<Tokenizer> tokenizer;  // null where the checkpoint has none that is known: `no_tokenizer` says why
  std::string no_tokenizer;
  std::unique_ptr<ChatTemplate> chat_template;  // null where there is none: `no_chat_template` says why
  std::string no_chat_template;
  std::string bos_text;
  std::string eos_text;
  size_t token_bytes_max = 0;              // of text that one token can stand for; 0: not known
  std::vector<std::string> special_texts;  // of control tokens, which clients must not be able to write
};

// `name` empty: the file's or folder's own, since names inside checkpoints are prose. Errors are the checkpoint's; a
// tokenizer or a template that is missing or not known only closes the ways that need it.
StatusOr<ServedModel> OpenServedModel(const std::string& path, const std::string& name);

}  // namespace sluice
