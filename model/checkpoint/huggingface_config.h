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

// A field of our own in config.json of models with random weights, made to be measured with.
inline constexpr char kSyntheticField[] = "sluice_synthetic";

struct HuggingFaceConfig {
  ModelConfig model;              // has passed Validate
  std::optional<TokenId> bos_id;  // config.json's; the tokenizer's files come first
};

// `generation_text` is empty where there is no generation_config.json. InvalidArgument names file, field and value.
StatusOr<HuggingFaceConfig> ReadHuggingFaceConfig(std::string_view config_text, std::string_view generation_text,
                                                  const std::string& folder);

// "model.layers.3.mlp.experts.7.up_proj.weight"
std::string HuggingFaceTensorName(Weight weight, int layer, int expert);

}  // namespace sluice
