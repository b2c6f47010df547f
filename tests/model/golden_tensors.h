// Reads the golden.safetensors of tests/data/tiny: f32 and i64 tensors by name.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace sluice {

struct GoldenTensor {
  std::vector<int64_t> shape;
  std::vector<float> f32;  // one of the two is filled
  std::vector<int64_t> i64;
};

// Aborts where the file is not what it should be.
std::map<std::string, GoldenTensor> ReadGoldenTensors(const std::string& path);

}  // namespace sluice
