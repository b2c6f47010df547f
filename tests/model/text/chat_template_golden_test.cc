// Exact renderings by Jinja in transformers' environment (tests/data/templates).
#include "gtest/gtest.h"
#include "model/text/chat_template.h"
#include "tests/model/text/small_tokenizers.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kNow = 1927857906;  // 2031-02-03T04:05:06 UTC, where the goldens' clock stands

ChatTemplate::Input InputOf(const Json& c) {
  ChatTemplate::Input input;
  input.messages = c.value("messages", Json::array());
  input.tools = c.value("tools", Json());
  input.documents = c.value("documents", Json());
  input.variables = c.value("variables", Json());
  input.add_generation_prompt = c.value("add_generation_prompt", false);
  input.bos_token = c["bos_token"];
  input.eos_token = c["eos_token"];
  input.now_unix_s = kNow;
  return input;
}

class TemplateGolden : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const std::string stem = "templates/" + GetParam();
    auto parsed = ChatTemplate::Parse(ReadTestFile(stem + ".jinja"));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    template_ = *std::move(parsed);
    golden_ = Json::parse(ReadTestFile(stem + ".json"));
    ASSERT_EQ(golden_["now"], "2031-02-03T04:05:06");
  }

  std::unique_ptr<ChatTemplate> template_;
  Json golden_;
};

TEST_P(TemplateGolden, RendersEachConversationByteForByte) {
  ASSERT_FALSE(golden_["cases"].empty());
  for (const Json& c : golden_["cases"]) {
    const StatusOr<std::string> rendered = template_->Render(InputOf(c));
    if (c.contains("expected")) {
      ASSERT_TRUE(rendered.ok()) << c["name"] << ": " << rendered.status();
      EXPECT_EQ(*rendered, c["expected"].get<std::string>()) << c["name"];
    } else {
      ASSERT_FALSE(rendered.ok()) << c["name"];
      EXPECT_EQ(rendered.status().code(), absl::StatusCode::kInvalidArgument);
      if (c["error_kind"] == "TemplateError") {
        EXPECT_EQ(rendered.status().message(), c["error"].get<std::string>());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Templates, TemplateGolden,
                         ::testing::Values("bracket_inst", "chatml", "documents", "effort_generation", "expressions",
                                           "filters", "header_tools", "loops", "macros", "strict_roles", "tools_xml",
                                           "turns_parts", "whitespace", "wide_bar_think"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace sluice
