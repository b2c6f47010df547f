#include "common/metrics_server.h"

#include <exception>

#include "prometheus/exposer.h"

namespace sluice {

namespace {

class ExposerServer final : public MetricsServer {
 public:
  ExposerServer(const std::string& listen, Metrics& metrics) : registry_(metrics.registry()), exposer_(listen, 2) {
    exposer_.RegisterCollectable(registry_);
    address_ = absl::StrCat(listen.substr(0, listen.rfind(':')), ":", exposer_.GetListeningPorts().at(0));
  }
  const std::string& address() const override { return address_; }

 private:
  std::shared_ptr<prometheus::Registry> registry_;  // the exposer holds it weakly
  prometheus::Exposer exposer_;
  std::string address_;
};

}  // namespace

StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Create(const std::string& listen, Metrics& metrics) {
  try {
    return std::unique_ptr<MetricsServer>(new ExposerServer(listen, metrics));
  } catch (const std::exception& e) {
    return absl::UnavailableError(absl::StrCat("metrics: cannot listen on ", listen, ": ", e.what()));
  }
}

}  // namespace sluice
