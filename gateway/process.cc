#include "gateway/process.h"

#include "common/process.h"
#include "gateway/gateway.h"
#include "spdlog/spdlog.h"

namespace sluice {

Status RunGateway(const GatewayOptions& options) {
  SLUICE_RETURN_IF_ERROR(options.Validate());
  SLUICE_ASSIGN_OR_RETURN(ServedModel model, OpenServedModel(options.model_path, options.model_name));
  const std::string name = model.name;
  AsioLoop loop(options.prepare_threads);
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<Gateway> gateway, Gateway::Create(options, std::move(model), &loop));
  loop.OnTerminate([&gateway] { gateway->Drain(); });
  spdlog::info("gateway of {} listens on http://{}", name, gateway->address());
  SLUICE_RETURN_IF_ERROR(Announce(options.announce_fd, {{"role", "gateway"}, {"http", gateway->address()}}));
  loop.Run();
  return absl::OkStatus();
}

}  // namespace sluice
