#include "tests/kernels/codec_goldens.h"

#include <cstring>
#include <fstream>

#include "common/mapped_file.h"
#include "nlohmann/json.hpp"

namespace sluice {

namespace {

std::string Path(const std::string& name) { return std::string(SLUICE_TEST_DATA) + "/codecs/" + name; }

std::vector<CodecCase> ReadCases() {
  std::map<std::string, GoldenBytes> tensors = ReadSafetensors("codecs.safetensors");
  std::ifstream file(Path("codecs.json"));
  const nlohmann::json json = nlohmann::json::parse(file);
  std::vector<CodecCase> cases;
  for (const nlohmann::json& c : json.at("cases")) {
    const std::string name = c.at("codec");
    const auto codec = ParseKvCodec(name);
    SLUICE_CHECK(codec.ok(), "codec ", name);
    CodecCase& out = cases.emplace_back();
    out.codec = *codec;
    out.input = c.at("input");
    const auto dims = c.at("shape").get<std::vector<int64_t>>();
    out.shape = {.channels = static_cast<int>(c.value("latent", dims.back())), .rope = c.value("rope", 0)};
    out.x = tensors.at("input/" + out.input).as<float>();
    out.rows = static_cast<int64_t>(out.x.size()) / out.shape.width();
    out.encoded = tensors.at("encoded/" + name + "/" + out.input).bytes;
    out.decoded = name == "f32" ? out.x : tensors.at("decoded/" + name + "/" + out.input).as<float>();
    out.counts = {.nonfinite_rows = c.at("nonfinite_rows"), .saturated = c.at("saturated")};
  }
  return cases;
}

}  // namespace

std::map<std::string, GoldenBytes> ReadSafetensors(const std::string& name) {
  const auto file = MappedFile::Open(Path(name));
  SLUICE_CHECK(file.ok(), "", file.status().ToString());
  const std::byte* bytes = (*file)->bytes().data();
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes, sizeof(header_bytes));
  const std::byte* data = bytes + 8 + header_bytes;
  const auto* text = reinterpret_cast<const char*>(bytes) + 8;
  std::map<std::string, GoldenBytes> tensors;
  const nlohmann::json header = nlohmann::json::parse(text, text + header_bytes);
  for (const auto& [tensor, info] : header.items()) {
    if (tensor == "__metadata__") continue;
    const size_t begin = info["data_offsets"][0];
    const size_t end = info["data_offsets"][1];
    tensors[tensor] = {info["shape"].get<std::vector<int64_t>>(), {data + begin, data + end}};
  }
  return tensors;
}

const std::vector<CodecCase>& CodecCases() {
  static const std::vector<CodecCase> cases = ReadCases();
  return cases;
}

}  // namespace sluice
