#include "tests/model/golden_tensors.h"

#include <cstring>

#include "common/mapped_file.h"
#include "common/status.h"
#include "nlohmann/json.hpp"

namespace sluice {

std::map<std::string, GoldenTensor> ReadGoldenTensors(const std::string& path) {
  const auto file = MappedFile::Open(path);
  SLUICE_CHECK(file.ok(), "", file.status().ToString());
  const char* bytes = reinterpret_cast<const char*>((*file)->bytes().data());
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes, sizeof(header_bytes));
  const char* data = bytes + 8 + header_bytes;
  std::map<std::string, GoldenTensor> tensors;
  const nlohmann::json header = nlohmann::json::parse(bytes + 8, data);
  for (const auto& [name, info] : header.items()) {
    if (name == "__metadata__") continue;
    GoldenTensor& tensor = tensors[name];
    tensor.shape = info["shape"].get<std::vector<int64_t>>();
    const size_t begin = info["data_offsets"][0];
    const size_t size = static_cast<size_t>(info["data_offsets"][1]) - begin;
    if (info["dtype"] == "F32") {
      tensor.f32.resize(size / sizeof(float));
      std::memcpy(tensor.f32.data(), data + begin, size);
    } else {
      SLUICE_CHECK(info["dtype"] == "I64", "", name);
      tensor.i64.resize(size / sizeof(int64_t));
      std::memcpy(tensor.i64.data(), data + begin, size);
    }
  }
  return tensors;
}

}  // namespace sluice
