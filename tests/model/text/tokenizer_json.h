// Tokenizer data from a tokenizer.json of the kinds that tests/data/tokenizers holds.
#pragma once

#include <string>

#include "model/checkpoint/tokenizer_data.h"

namespace sluice {

TokenizerData TokenizerDataFromJson(const std::string& path);

}  // namespace sluice
