// What a process has of UCX once: the library made to behave (its log goes to ours, its signal handlers go), and one
// context for each network device that is asked for. Of the transport's thread.
#pragma once

#include <memory>
#include <string>

#include "common/status.h"
#include "ucp/api/ucp.h"

namespace sluice {

Status UcxError(std::string_view what, ucs_status_t status);

class UcxContext {
 public:
  // `device`: the network interface that is used, "lo" for one that no other machine reaches; empty: all.
  static StatusOr<std::unique_ptr<UcxContext>> Create(const std::string& device);
  ~UcxContext() {
    if (!kept_) ucp_cleanup(context_);
  }
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;

  ucp_context_h get() const { return context_; }
  // A worker of it had to be abandoned: it stays for the rest of the process.
  void Keep() { kept_ = true; }

 private:
  explicit UcxContext(ucp_context_h context) : context_(context) {}
  ucp_context_h context_;
  bool kept_ = false;
};

}  // namespace sluice
