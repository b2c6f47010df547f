#include "transport/ucx_context.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

#include "spdlog/spdlog.h"

// These headers of UCX lack their own extern "C".
extern "C" {
#include "ucs/config/global_opts.h"
#include "ucs/debug/debug.h"
#include "ucs/debug/log_def.h"
}

namespace sluice {

namespace {

// Every error of UCX also comes back as a status, and a peer that dies is none of ours.
spdlog::level::level_enum Level(ucs_log_level_t level) {
  return level == UCS_LOG_LEVEL_FATAL ? spdlog::level::critical : spdlog::level::debug;
}

// UCX prints to stdout otherwise, which belongs to the program's answers.
ucs_log_func_rc_t LogThroughSpdlog(const char* file, unsigned line, const char*, ucs_log_level_t level,
                                   const ucs_log_component_config_t*, const char* format, va_list arguments) {
  char message[1024];
  std::vsnprintf(message, sizeof(message), format, arguments);
  spdlog::log(Level(level), "UCX: {} ({}:{})", message, file, line);
  return UCS_LOG_FUNC_RC_STOP;
}

void TameLibrary() {
  static std::once_flag once;
  std::call_once(once, [] {
    // UCX catches SIGSEGV and the like when it is loaded and freezes or prints; crashes are ours to report.
    if (ucs_global_opts.handle_errors != 0) {
      for (unsigned i = 0; i < ucs_global_opts.error_signals.count; ++i)
        ucs_debug_disable_signal(ucs_global_opts.error_signals.signals[i]);
    }
    ucs_log_push_handler(LogThroughSpdlog);
  });
}

struct Setting {
  const char* name;
  const char* value;
  const char* environment;  // where the operator has set this, it stays; null: it may not be set
};

constexpr Setting kSettings[] = {
    // Shared memory cannot tell of a dead peer and is not chosen for our endpoints, yet every worker would take
    // 8 MiB of it, which a small /dev/shm does not have and which a killed process leaves behind.
    {"TLS", "^sm", "UCX_TLS"},
    // connect() of a data socket would block the transport's thread for as long as a firewall swallows it.
    {"CONN_NB", "y", "UCX_TCP_CONN_NB"},
    // UCX's emulated remote write over TCP lets whoever reaches its port write to any address of the process. Without
    // it a rendezvous goes in messages that find their landing by a request id; no difference in speed was seen.
    {"PUT_ENABLE", "n", "UCX_TCP_PUT_ENABLE"},
    // Both ends have to have the same: UCX aborts the process (an assertion, in release builds too) when a peer sends
    // a longer segment than it takes. Four times UCX's own value, for fewer and longer reads.
    {"RX_SEG_SIZE", "256K", nullptr},
    // The control stream notices dead and silent peers; UCX's own timer would only wake an idle process.
    {"KEEPALIVE_INTERVAL", "inf", "UCX_KEEPALIVE_INTERVAL"},
};

Status Apply(ucp_config_t* config, const Setting& setting) {
  if (setting.environment != nullptr && std::getenv(setting.environment) != nullptr) return absl::OkStatus();
  const ucs_status_t status = ucp_config_modify(config, setting.name, setting.value);
  if (status == UCS_OK) return absl::OkStatus();
  return UcxError(absl::StrCat("setting ", setting.name, "=", setting.value), status);
}

StatusOr<ucp_context_h> Init(ucp_config_t* config, const std::string& device) {
  for (const Setting& setting : kSettings) SLUICE_RETURN_IF_ERROR(Apply(config, setting));
  const Setting devices = {"NET_DEVICES", device.c_str(), "UCX_NET_DEVICES"};
  if (!device.empty()) SLUICE_RETURN_IF_ERROR(Apply(config, devices));
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.name = "sluice";
  ucp_context_h context = nullptr;
  const ucs_status_t status = ucp_init(&params, config, &context);
  if (status != UCS_OK) return UcxError("ucp_init", status);
  return context;
}

}  // namespace

Status UcxError(std::string_view what, ucs_status_t status) {
  const std::string message = absl::StrCat(std::string(what), ": ", ucs_status_string(status));
  switch (status) {
    case UCS_ERR_CANCELED:
      return absl::CancelledError(message);
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
      return absl::ResourceExhaustedError(message);
    case UCS_ERR_INVALID_PARAM:
      return absl::InternalError(message);
    default:
      return absl::UnavailableError(message);
  }
}

StatusOr<std::unique_ptr<UcxContext>> UcxContext::Create(const std::string& device) {
  TameLibrary();
  ucp_config_t* config = nullptr;
  const ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return UcxError("ucp_config_read", status);
  const StatusOr<ucp_context_h> context = Init(config, device);
  ucp_config_release(config);
  if (!context.ok()) return context.status();
  return std::unique_ptr<UcxContext>(new UcxContext(*context));
}

}  // namespace sluice
