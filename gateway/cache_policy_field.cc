#include "gateway/cache_policy_field.h"

#include <optional>
#include <string>

namespace sluice {

namespace {

using Json = nlohmann::ordered_json;

std::string Show(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 64) text = text.substr(0, 64) + "...";
  return text;
}

Status Wrong(const std::string& member, const Json& value, const char* wanted) {
  return absl::InvalidArgumentError(absl::StrCat("cache_policy.", member, " is ", Show(value), ", must be ", wanted));
}

Status ReadTokens(const std::string& member, const Json& value, const char* wanted, std::optional<int64_t>* out) {
  if (!value.is_number_integer() || value < 0 || value > int64_t{1} << 30) {
    return Wrong(member, value, wanted);
  }
  *out = value.get<int64_t>();
  return absl::OkStatus();
}

Status ReadMember(const std::string& member, const Json& value, CachePolicySpec* spec) {
  if (member == "kind") {
    if (!value.is_string()) return Wrong(member, value, "a string");
    SLUICE_ASSIGN_OR_RETURN(spec->kind, ParseCachePolicyKind(value.get_ref<const std::string&>()));
    return absl::OkStatus();
  }
  if (member == "budget") {
    if (value.is_string()) return SetBudget(value.get_ref<const std::string&>(), spec);
    return ReadTokens(member, value, "a number of slots or a share of the prompt such as \"20%\"", &spec->budget);
  }
  if (member == "sinks") return ReadTokens(member, value, "a number of tokens", &spec->sinks);
  if (member == "window") return ReadTokens(member, value, "a number of tokens", &spec->window);
  if (member == "decay") {
    if (!value.is_number()) return Wrong(member, value, "a number");
    spec->decay = static_cast<float>(value.get<double>());
    return absl::OkStatus();
  }
  if (member == "by_age") {
    if (!value.is_boolean()) return Wrong(member, value, "true or false");
    spec->by_age = value.get<bool>();
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("cache_policy has the member ", Show(Json(member)),
                                                 ", there are kind, budget, sinks, window, decay and by_age"));
}

}  // namespace

StatusOr<CachePolicySpec> ReadCachePolicy(const Json& value) {
  CachePolicySpec spec;
  if (value.is_string()) {
    SLUICE_RETURN_IF_ERROR(ReadMember("kind", value, &spec));
  } else if (!value.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat("cache_policy is ", Show(value), ", must be a string or an object"));
  } else {
    if (!value.contains("kind")) return absl::InvalidArgumentError("cache_policy.kind is missing");
    for (const auto& [member, part] : value.items()) SLUICE_RETURN_IF_ERROR(ReadMember(member, part, &spec));
  }
  SLUICE_RETURN_IF_ERROR(Validate(spec));
  return spec;
}

}  // namespace sluice
