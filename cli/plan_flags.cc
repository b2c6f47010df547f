#include "cli/plan_flags.h"

#include <charconv>
#include <map>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace sluice {
namespace {

constexpr char kShapeForms[] =
    "layers=80,heads=64,kv_heads=8,head_dim=128 or layers=27,heads=16,latent=512,rope_dim=64";

struct ShapeKey {
  const char* name;
  int* value;
};

StatusOr<std::map<std::string, int>> ReadShape(const std::string& text, const std::vector<ShapeKey>& keys) {
  std::map<std::string, int> given;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, ','))) {
    const size_t equals = std::min(part.find('='), part.size());
    const std::string name = part.substr(0, equals);
    const bool known = std::any_of(keys.begin(), keys.end(), [&](const ShapeKey& key) { return name == key.name; });
    if (!known) {
      return absl::InvalidArgumentError(absl::StrCat("shape has no \"", name, "\": it is spelt ", kShapeForms));
    }
    int value = 0;
    const char* end = part.data() + part.size();
    const auto [rest, error] = std::from_chars(std::min(part.data() + equals + 1, end), end, value);
    if (error != std::errc() || rest != end) {
      return absl::InvalidArgumentError(absl::StrCat("\"", part, "\" is not a number of ", name));
    }
    if (const auto [at, is_new] = given.emplace(name, value); !is_new) {
      return absl::InvalidArgumentError(absl::StrCat(name, " is given as ", at->second, " and as ", value));
    }
  }
  return given;
}

// InvalidArgument where a key of `needed` is missing, or where one of `others` says that the shape is of another kind.
Status CheckKeys(const std::map<std::string, int>& given, const char* kind, const std::vector<const char*>& needed,
                 const std::vector<const char*>& others) {
  for (const char* other : others) {
    if (const auto at = given.find(other); at != given.end()) {
      return absl::InvalidArgumentError(absl::StrCat("a shape with ", kind, " has no ", other, " (", at->second,
                                                     "): MLA keeps a latent, GQA keeps kv_heads"));
    }
  }
  for (const char* name : needed) {
    if (given.count(name) == 0) {
      return absl::InvalidArgumentError(absl::StrCat("shape lacks ", name, ": it is spelt ", kShapeForms));
    }
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<PlannedModel> ParseShape(const std::string& text) {
  PlannedModel model;
  KvLayout& layout = model.layout;
  const std::vector<ShapeKey> keys = {{"layers", &layout.layers},     {"heads", &model.heads},
                                      {"kv_heads", &layout.kv_heads}, {"head_dim", &layout.head_dim},
                                      {"latent", &layout.latent},     {"rope_dim", &layout.rope_dim},
                                      {"nope_dim", &model.nope_dim},  {"value_dim", &model.value_dim}};
  using Given = std::map<std::string, int>;
  SLUICE_ASSIGN_OR_RETURN(const Given given, ReadShape(text, keys));
  for (const ShapeKey& key : keys) {
    if (const auto at = given.find(key.name); at != given.end()) *key.value = at->second;
  }
  if (given.count("latent") != 0) {
    layout.kind = KvKind::kMla;
    SLUICE_RETURN_IF_ERROR(CheckKeys(given, "latent", {"layers", "heads", "rope_dim"}, {"kv_heads", "head_dim"}));
  } else {
    SLUICE_RETURN_IF_ERROR(CheckKeys(given, "no latent", {"layers", "heads", "kv_heads", "head_dim"},
                                     {"rope_dim", "nope_dim", "value_dim"}));
  }
  SLUICE_RETURN_IF_ERROR(Validate(model));
  return model;
}

StatusOr<double> ParseLinkRate(const std::string& text) {
  struct Unit {
    std::string_view name;
    double bytes;
  };
  constexpr Unit kUnits[] = {{"Gbit/s", 1.25e8}, {"Mbit/s", 1.25e5},         {"GB/s", 1e9},
                             {"MB/s", 1e6},      {"GiB/s", double{1 << 30}}, {"MiB/s", double{1 << 20}}};
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  const std::string_view name(rest, static_cast<size_t>(end - rest));
  for (const Unit& unit : kUnits) {
    if (error == std::errc() && name == unit.name && number > 0) return number * unit.bytes;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is not a rate such as 10Gbit/s, 250Mbit/s, 1.25GB/s, 100MB/s or 1GiB/s"));
}

}  // namespace sluice
