// What a GGUF file says about a llama model and its tokenizer: metadata keys to ModelConfig and TokenizerData.
#pragma once

#include <string>

#include "common/status.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/config.h"
#include "model/checkpoint/gguf_file.h"
#include "model/checkpoint/tokenizer_data.h"

namespace sluice {

// InvalidArgument names the key and its value: unknown architecture, unknown rope scaling, a feature that would change
// the result and is not implemented (experts, partial rotation). The result has passed Validate.
StatusOr<ModelConfig> ReadGgufConfig(const GgufFile& file);

// A tokenizer that cannot be built is kNone with its reason; InvalidArgument where the keys contradict each other or
// the vocabulary.
StatusOr<TokenizerData> ReadGgufTokenizer(const GgufFile& file, const ModelConfig& config);

// "blk.3.attn_q.weight". Llama models have no experts.
std::string GgufTensorName(Weight weight, int layer, int expert);

}  // namespace sluice
