// tokenizer.json and tokenizer_config.json, as text, to TokenizerData.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/ids.h"
#include "common/status.h"
#include "model/checkpoint/tokenizer_data.h"

namespace sluice {

struct HuggingFaceTokenizerTexts {
  std::string_view tokenizer;         // tokenizer.json; empty where there is none
  std::string_view tokenizer_config;  // tokenizer_config.json; empty where there is none
  std::string_view chat_template;     // chat_template.jinja, which comes before tokenizer_config.json's; may be empty
};

// Ids are below `vocab_size`; tokens that no file names are empty. A tokenizer of another kind than byte-level BPE is
// kNone with its reason. InvalidArgument where a file is broken or contradicts itself.
StatusOr<TokenizerData> ReadHuggingFaceTokenizer(const HuggingFaceTokenizerTexts& texts, int vocab_size,
                                                 std::optional<TokenId> config_bos_id, const std::string& folder);

}  // namespace sluice
