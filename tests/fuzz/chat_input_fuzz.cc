// Any JSON as a conversation, through templates like the published ones.
#include <memory>
#include <vector>

#include "model/text/chat_template.h"
#include "model/text/utf8.h"
#include "tests/model/text/small_tokenizers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using sluice::ChatTemplate;
  static const std::vector<std::unique_ptr<ChatTemplate>> templates = [] {
    std::vector<std::unique_ptr<ChatTemplate>> list;
    for (const char* name : {"chatml", "header_tools", "tools_xml", "wide_bar_think", "macros", "documents"}) {
      auto parsed = ChatTemplate::Parse(sluice::ReadTestFile(std::string("templates/") + name + ".jinja"));
      SLUICE_CHECK(parsed.ok());
      list.push_back(*std::move(parsed));
    }
    return list;
  }();
  if (size == 0) return 0;
  const auto json = nlohmann::ordered_json::parse(data + 1, data + size, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return 0;
  ChatTemplate::Input input;
  const auto field = [&](const char* name) { return json.contains(name) ? json[name] : nlohmann::ordered_json(); };
  input.messages = field("messages");
  input.tools = field("tools");
  input.documents = field("documents");
  input.variables = field("variables");
  input.now_unix_s = 0;
  const auto rendered = templates[data[0] % templates.size()]->Render(input);
  SLUICE_CHECK(rendered.ok() ? sluice::IsValidUtf8(*rendered)
                             : rendered.status().code() == absl::StatusCode::kInvalidArgument);
  return 0;
}
