// A small blocking HTTP/1.1 client for `sluice complete --url` and `sluice chat --url`. One connection a call; every
// wait has a deadline but the look-up of a name, which is the system's. No TLS.
#pragma once

#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "common/status.h"

namespace sluice {

class HttpClient {
 public:
  // `url` is "http://host:port", a path behind it is put before each call's. InvalidArgument otherwise.
  static StatusOr<HttpClient> Create(std::string_view url, absl::Duration idle_timeout);

  // The body of the answer to a POST of JSON. A status other than 200 becomes an error with the server's own words.
  StatusOr<std::string> Post(std::string_view path, const std::string& body) const;

  // The same for a stream of server-sent events: `on_event` gets the data of each but the closing [DONE]; an error from
  // it ends the call. DataLoss where the stream breaks off before [DONE].
  Status PostStream(std::string_view path, const std::string& body,
                    absl::FunctionRef<Status(std::string_view data)> on_event) const;

 private:
  HttpClient() = default;
  class Exchange;

  std::string url_;
  std::string host_;
  std::string port_;
  std::string prefix_;
  absl::Duration idle_timeout_;
};

}  // namespace sluice
