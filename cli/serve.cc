#include "cli/serve.h"

#include "absl/strings/str_join.h"
#include "cli/supervisor.h"
#include "model/ticket.h"
#include "spdlog/spdlog.h"

namespace sluice {

namespace {

constexpr char kAnyLoopbackPort[] = "127.0.0.1:0";

std::vector<std::string> Join(std::vector<std::string> first, const std::vector<std::string>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

ChildSpec WorkerSpec(const ServeOptions& options, const std::string& role, int index) {
  ChildSpec spec;
  spec.name = absl::StrCat(role, " ", index);
  spec.args = Join({role, "--model", options.model}, options.worker_flags);
  spec.args = Join(spec.args, role == "decode" ? options.decode_flags : options.prefill_flags);
  spec.listens = {{"--listen", "grpc", kAnyLoopbackPort}, {"--metrics-listen", "metrics", kAnyLoopbackPort}};
  if (role == "decode") spec.listens.push_back({"--kv-listen", "kv", kAnyLoopbackPort});
  return spec;
}

}  // namespace

Status ServeOptions::Validate() const {
  std::vector<std::string> problems;
  const auto range = [&](absl::string_view field, int value, int low, int high) {
    if (value < low || value > high) {
      problems.push_back(absl::StrCat(field, " is ", value, ", must be from ", low, " to ", high));
    }
  };
  if (model.empty()) problems.push_back("model is not given");
  range("port", port, 0, 65535);
  range("prefill", prefill_processes, 1, 64);
  range("decode", decode_processes, 1, 64);
  return problems.empty() ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrJoin(problems, "; "));
}

Status RunServe(const ServeOptions& options) {
  SLUICE_RETURN_IF_ERROR(options.Validate());
  // Tickets between these processes are sealed with a key that nobody else has and that ends with them.
  const std::string key(ClusterKey::Generate().bytes());
  Supervisor::Options supervisor_options;
  supervisor_options.environment = {absl::StrCat("SLUICE_CLUSTER_KEY=", key)};
  Supervisor supervisor(std::move(supervisor_options));

  std::vector<ChildSpec> workers;
  for (int i = 0; i < options.decode_processes; ++i) workers.push_back(WorkerSpec(options, "decode", i));
  for (int i = 0; i < options.prefill_processes; ++i) workers.push_back(WorkerSpec(options, "prefill", i));
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Announcement> announced, supervisor.Start(workers));

  std::vector<std::string> decode_addresses, prefill_addresses;
  for (size_t i = 0; i < workers.size(); ++i) {
    const auto grpc = announced[i].find("grpc");
    const auto metrics = announced[i].find("metrics");
    if (grpc == announced[i].end() || metrics == announced[i].end()) {
      return absl::InternalError(absl::StrCat(workers[i].name, " announced no address"));
    }
    const bool decode = i < static_cast<size_t>(options.decode_processes);
    (decode ? decode_addresses : prefill_addresses).push_back(grpc->second);
    spdlog::info("{}: control {}, metrics http://{}/metrics", workers[i].name, grpc->second, metrics->second);
  }
  ChildSpec gateway;
  gateway.name = "gateway";
  gateway.args = Join({"gateway", "--model", options.model, "--decode", absl::StrJoin(decode_addresses, ","),
                       "--prefill", absl::StrJoin(prefill_addresses, ",")},
                      options.gateway_flags);
  gateway.listens = {{"--listen", "http", absl::StrCat(options.host, ":", options.port)}};
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Announcement> gateways, supervisor.Start({gateway}));
  const auto http = gateways[0].find("http");
  if (http == gateways[0].end()) return absl::InternalError("the gateway announced no address");
  spdlog::info("listening on http://{}", http->second);
  supervisor.Run();
  return absl::OkStatus();
}

}  // namespace sluice
