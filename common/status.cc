#include "common/status.h"

#include <cstdio>
#include <cstdlib>

#include "absl/strings/cord.h"

namespace sluice {

namespace {
constexpr char kAtPeerUrl[] = "sluice/at-peer";
}  // namespace

Status WithContext(const Status& status, std::string_view context) {
  if (status.ok()) return status;
  const Status with(status.code(),
                    absl::StrCat(absl::string_view(context.data(), context.size()), ": ", status.message()));
  return IsAtPeer(status) ? AtPeer(with) : with;
}

Status AtPeer(Status status) {
  status.SetPayload(kAtPeerUrl, absl::Cord());
  return status;
}

bool IsAtPeer(const Status& status) { return status.GetPayload(kAtPeerUrl).has_value(); }

int HttpStatus(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kCancelled:
      return 499;
    case absl::StatusCode::kUnimplemented:
      return 501;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kDataLoss:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

bool IsRetriable(const Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kDataLoss:
      return true;
    default:
      return false;
  }
}

void Fatal(const char* file, int line, std::string_view message) {
  std::fprintf(stderr, "%s:%d: %.*s\n", file, line, static_cast<int>(message.size()), message.data());
  std::fflush(stderr);
  std::abort();
}

}  // namespace sluice
