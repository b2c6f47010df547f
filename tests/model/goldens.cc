#include "tests/model/goldens.h"

#include <cstring>
#include <fstream>

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
    } else if (info["dtype"] == "I32") {
      std::vector<int32_t> values(size / sizeof(int32_t));
      std::memcpy(values.data(), data + begin, size);
      tensor.i64.assign(values.begin(), values.end());
    } else {
      SLUICE_CHECK(info["dtype"] == "I64", "", name);
      tensor.i64.resize(size / sizeof(int64_t));
      std::memcpy(tensor.i64.data(), data + begin, size);
    }
  }
  return tensors;
}

namespace {

nlohmann::json ReadJson(const std::string& path) {
  std::ifstream file(path);
  SLUICE_CHECK(file.good(), "", path);
  return nlohmann::json::parse(file);
}

}  // namespace

std::vector<RealPrompt> ReadRealPrompts(const std::string& path) {
  const nlohmann::json goldens = ReadJson(path);
  std::vector<RealPrompt> prompts;
  for (const nlohmann::json& p : goldens["prompts"]) {
    RealPrompt& prompt = prompts.emplace_back();
    p.at("name").get_to(prompt.name);
    p.at("ids").get_to(prompt.ids);
    p.at("greedy_ids").get_to(prompt.greedy_ids);
    p.at("first_token_top20").get_to(prompt.first_top20);
    for (size_t i = 0; i < prompt.greedy_ids.size(); ++i) {
      RealPrompt::Step& step = prompt.steps.emplace_back();
      p.at("steps_top5").at(i).get_to(step.top);
      p.at("steps_logsumexp").at(i).get_to(step.log_sum_exp);
      p.at("steps_margin").at(i).get_to(step.margin);
    }
  }
  return prompts;
}

RealPerplexity ReadRealPerplexity(const std::string& path) {
  const nlohmann::json golden = ReadJson(path);
  return {.ids = golden.at("ids").get<std::vector<TokenId>>(),
          .whole = golden.at("whole").at("perplexity"),
          .chunks512 = golden.at("chunks512").at("perplexity")};
}

}  // namespace sluice
