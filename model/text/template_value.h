// Values of a chat template while it is rendered, and the arena that owns them. A value is a small copyable handle;
// lists, dicts and strings live until the end of the rendering, so that cycles cannot leak and deep nesting cannot
// overflow a destructor. The arena also counts work and bytes: templates come with checkpoints and conversations from
// clients, and neither may run for ever. One rendering, one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"

namespace sluice::jinja {

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kNamespace,
  kLoop,  // the variable `loop`
  kMacro,
  kMethod,    // a method of a value, not yet called
  kFunction,  // a global function
};

class Value;
struct List;
struct Dict;
struct Loop;
struct Macro;
struct Method;
struct Function;

class Value {
 public:
  Value() : integer_(0) {}
  static Value None() { return Value(Kind::kNone); }
  static Value Bool(bool b) {
    Value v(Kind::kBool);
    v.boolean_ = b;
    return v;
  }
  static Value Int(int64_t i) {
    Value v(Kind::kInt);
    v.integer_ = i;
    return v;
  }
  static Value Float(double d) {
    Value v(Kind::kFloat);
    v.real_ = d;
    return v;
  }
  // Points to `text`, which must outlive the rendering.
  static Value String(std::string_view text) {
    Value v(Kind::kString);
    v.text_ = text.data();
    v.size_ = text.size();
    return v;
  }
  // `name`: what is undefined, for messages.
  static Value Undefined(std::string_view name) {
    Value v(Kind::kUndefined);
    v.text_ = name.data();
    v.size_ = name.size();
    return v;
  }
  static Value Of(Kind kind, const void* object) {
    Value v(kind);
    v.object_ = object;
    return v;
  }

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_sequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }
  bool is_number() const { return kind_ == Kind::kInt || kind_ == Kind::kFloat || kind_ == Kind::kBool; }
  bool is_integral() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }

  // REQUIRES: the kind that each names; text() also takes kUndefined (its name).
  bool boolean() const { return boolean_; }
  int64_t integer() const { return kind_ == Kind::kBool ? boolean_ : integer_; }
  double real() const { return kind_ == Kind::kFloat ? real_ : static_cast<double>(integer()); }
  std::string_view text() const { return {text_, size_}; }
  const std::vector<Value>& items() const;
  template <typename T>
  T& as() const {
    return *static_cast<T*>(const_cast<void*>(object_));
  }

 private:
  explicit Value(Kind kind) : kind_(kind), integer_(0) {}

  Kind kind_ = Kind::kUndefined;
  union {
    bool boolean_;
    int64_t integer_;
    double real_;
    const char* text_;
    const void* object_;
  };
  size_t size_ = 0;
};

struct List {
  std::vector<Value> items;
};

struct Dict {  // also a namespace
  std::vector<std::pair<Value, Value>> items;
};

struct Loop {
  const std::vector<Value>* items = nullptr;
  int64_t index0 = 0;
  int64_t depth0 = 0;
  std::optional<Value> last_changed;
};

struct Method {
  Value self;
  std::string_view name;
};

inline const std::vector<Value>& Value::items() const { return as<const List>().items; }

// What a Python error would call the kind: "str", "list".
std::string_view TypeName(const Value& value);

struct Limits {
  int64_t steps = 20'000'000;        // nodes evaluated, elements and tens of bytes handled
  size_t bytes = size_t{128} << 20;  // made while rendering, intermediate values included
  size_t output_bytes = size_t{32} << 20;
  int depth = 500;        // of nested evaluation
  int value_depth = 100;  // of nested lists and dicts, where they are printed or compared
};

inline Status Error(std::string_view message) {
  return absl::InvalidArgumentError(absl::string_view(message.data(), message.size()));
}

class Arena {
 public:
  Arena(const Limits& limits, int64_t now_unix_s) : limits_(limits), now_unix_s_(now_unix_s) {}
  const Limits& limits() const { return limits_; }
  int64_t now_unix_s() const { return now_unix_s_; }

  // The template's own refusal. Errors after it, on the way up, get no line of their own.
  Status Raise(std::string_view message);
  bool raised() const { return raised_; }

  // Count work and memory before it is spent. InvalidArgument above the limit.
  Status Step(size_t count = 1);
  Status Take(size_t bytes);

  StatusOr<Value> NewString(std::string text);
  StatusOr<Value> NewList(std::vector<Value> items, Kind kind = Kind::kList);
  StatusOr<Value> NewDict(std::vector<std::pair<Value, Value>> items, Kind kind = Kind::kDict);
  StatusOr<Value> NewMethod(const Value& self, std::string_view name);
  StatusOr<Loop*> NewLoop();
  // Names that must outlive the caller.
  StatusOr<std::string_view> Keep(std::string text);

 private:
  Limits limits_;
  int64_t now_unix_s_;
  bool raised_ = false;
  int64_t steps_ = 0;
  size_t bytes_ = 0;
  std::deque<std::string> strings_;
  std::deque<List> lists_;
  std::deque<Dict> dicts_;
  std::deque<Method> methods_;
  std::deque<Loop> loops_;
};

}  // namespace sluice::jinja
