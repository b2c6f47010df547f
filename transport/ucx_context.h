// What a process has of UCX once: the library made to behave (its log goes to ours, its signal handlers go), and one
// context for each reach: peers on this machine only, or on any. Of the transport's thread.
#pragma once

#include <memory>

#include "common/status.h"
#include "ucp/api/ucp.h"

namespace sluice {

Status UcxError(std::string_view what, ucs_status_t status);

class UcxContext {
 public:
  // With `loopback_only` no socket of UCX is reachable from another machine.
  static StatusOr<std::unique_ptr<UcxContext>> Create(bool loopback_only);
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
