// Jinja's grammar, as far as published chat templates use it. Whatever is not known (tag, filter, test, method) is
// refused here, with its line, so that a template that loads does not fail for that reason later.
#pragma once

#include <string_view>

#include "common/status.h"
#include "model/text/template_ast.h"

namespace sluice::jinja {

// InvalidArgument with the line.
StatusOr<Body> ParseTemplate(std::string_view source);

}  // namespace sluice::jinja
