#include "cli/command_line.h"

#include <algorithm>

#include "CLI/CLI.hpp"
#include "cli/subcommand.h"
#include "kernels/isa.h"

namespace sluice {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;

// One line, whatever CLI11 put between its parts.
std::string OneLine(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// The deepest subcommand that was named, for help texts and hints.
const CLI::App* Chosen(const CLI::App& app) {
  const CLI::App* chosen = &app;
  while (!chosen->get_subcommands().empty()) chosen = chosen->get_subcommands().front();
  return chosen;
}

std::string CommandPath(const CLI::App* app) {
  return app->get_parent() == nullptr ? "sluice" : CommandPath(app->get_parent()) + " " + app->get_name();
}

int Usage(const CLI::App& app, const std::string& problem, std::ostream& err) {
  err << "sluice: " << OneLine(problem) << " (see " << CommandPath(Chosen(app)) << " --help)\n";
  return kUsage;
}

// A config file holds a section for each subcommand, so that one file can describe a whole deployment.
void Configure(CLI::App& app) {
  app.require_subcommand(0, 1);  // none at all is noticed after unknown words have been
  app.fallthrough();
  app.set_config("--config", "", "Read flags from this file: a [section] for each subcommand, lines of flag = value")
      ->type_name("FILE");
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.get_formatter()->column_width(34);
}

void FinishHelp(CLI::App& app) {
  for (CLI::App* sub : app.get_subcommands([](CLI::App*) { return true; })) {
    sub->fallthrough();
    sub->footer(absl::StrCat("Flags can also come from --config FILE, section [", sub->get_name(),
                             "]; the command line comes first.")
                    .c_str());
  }
}

}  // namespace

int RunCommandLine(const std::vector<std::string>& arguments, std::istream& in, std::ostream& out, std::ostream& err) {
  CLI::App app("Serves large language models with prefill and decode in different processes.", "sluice");
  Configure(app);
  std::vector<std::unique_ptr<Subcommand>> commands;
  for (const auto make : {MakeServeCommand, MakeGatewayCommand, MakePrefillCommand, MakeDecodeCommand, MakeChatCommand,
                          MakeCompleteCommand, MakeModelsCommand, MakePlanCommand, MakeEvalCommand}) {
    commands.push_back(make(app));
  }
  FinishHelp(app);
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    const CLI::App* parent = Chosen(app)->get_parent();  // CLI11 adds the command's own name to what comes before it
    out << Chosen(app)->help(parent == nullptr ? "" : CommandPath(parent));
    return 0;
  } catch (const std::exception& error) {
    return Usage(app, error.what(), err);
  }
  for (const auto& command : commands) {
    if (!command->app().parsed()) continue;
    if (const Status status = command->Check(); !status.ok()) return Usage(app, std::string(status.message()), err);
    Status status = SetIsaFromEnvironment();
    if (status.ok()) status = command->Run({in, out, err});
    out.flush();
    if (status.ok()) return 0;
    err << "sluice: " << OneLine(std::string(status.message())) << "\n";
    return kFailed;
  }
  return Usage(app, "a subcommand is required", err);
}

}  // namespace sluice
