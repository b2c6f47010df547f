// Errors. Every boundary returns absl::Status or absl::StatusOr, and the canonical code carries the retry meaning:
//
//   code                | who may try again                            | HTTP
//   --------------------|----------------------------------------------|-----
//   InvalidArgument     | never: the request itself is wrong           | 400
//   NotFound            | never under this name                        | 404
//   OutOfRange          | never: beyond a stated limit of the model    | 400
//   FailedPrecondition  | never until an operator changes something    | 503
//   ResourceExhausted   | elsewhere or later ("no room", queue full)   | 429/503
//   Unavailable         | elsewhere: the peer is gone                  | 503
//   Aborted             | reservation lost: start over                 | 503
//   DataLoss            | discard and prefill again                    | 503
//   DeadlineExceeded    | the caller's time is over                    | 504
//   Cancelled           | nobody is waiting any more                   | 499
//   Internal            | a bug; counted                               | 500
//
// Whoever first decides that something is an error logs it, once; on the way up only context is added.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace sluice {

using absl::Status;
using absl::StatusOr;

// The status with "context: " put before its message; OK stays OK.
Status WithContext(const Status& status, std::string_view context);

// Says of an error that not the one who reports it is at fault but the peer that it worked with: so whoever retries
// leaves that one. Kept by WithContext, and by a gRPC call whose error details are kAtPeerDetails.
Status AtPeer(Status status);
bool IsAtPeer(const Status& status);
inline constexpr char kAtPeerDetails[] = "at peer";

// The HTTP status that the table above gives `code`.
int HttpStatus(absl::StatusCode code);

// True where another worker, or the same one later, may succeed (ResourceExhausted, Unavailable, Aborted, DataLoss).
bool IsRetriable(const Status& status);

// Prints the message and aborts: for states that only a bug in this program can produce.
[[noreturn]] void Fatal(const char* file, int line, std::string_view message);

}  // namespace sluice

#define SLUICE_CONCAT_INNER_(a, b) a##b
#define SLUICE_CONCAT_(a, b) SLUICE_CONCAT_INNER_(a, b)

// Debian 12's Abseil has no status macros; these carry our own prefix so that a later Abseil can replace them.
#define SLUICE_RETURN_IF_ERROR(expr)                 \
  do {                                               \
    ::absl::Status sluice_status_ = (expr);          \
    if (!sluice_status_.ok()) return sluice_status_; \
  } while (false)

// SLUICE_ASSIGN_OR_RETURN(auto x, F()): x is F()'s value, or the enclosing function returns F()'s status.
#define SLUICE_ASSIGN_OR_RETURN(lhs, expr) \
  SLUICE_ASSIGN_OR_RETURN_IMPL_(SLUICE_CONCAT_(sluice_or_, __LINE__), lhs, expr)
#define SLUICE_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                                  \
  if (!tmp.ok()) return tmp.status();                 \
  lhs = *std::move(tmp)

// Checks what cannot happen, in every build.
#define SLUICE_CHECK(condition, ...)                                                                    \
  do {                                                                                                  \
    if (!(condition)) [[unlikely]]                                                                      \
      ::sluice::Fatal(__FILE__, __LINE__, ::absl::StrCat("check failed: " #condition " " __VA_ARGS__)); \
  } while (false)
