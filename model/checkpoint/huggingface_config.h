// A Hugging Face folder's config.json and generation_config.json, as text, to a ModelConfig. Both spellings:
// transformers 5 (rope_parameters, dtype) and the one most published checkpoints have (rope_theta, rope_scaling,
// torch_dtype).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/status.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/config.h"

namespace sluice {

struct HuggingFaceConfig {
  ModelConfig model;              // has passed Validate
  std::optional<TokenId> bos_id;  // config.json's; the tokenizer's files come first
};

// `generation_text` is empty where there is no generation_config.json. InvalidArgument names file, field and value.
StatusOr<HuggingFaceConfig> ReadHuggingFaceConfig(std::string_view config_text, std::string_view generation_text,
                                                  const std::string& folder);

// "model.layers.3.self_attn.q_proj.weight"
std::string HuggingFaceTensorName(Weight weight, int layer);

}  // namespace sluice
