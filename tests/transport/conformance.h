// What every transport does, as one set of facts. An instantiation names the backend.
#pragma once

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "tests/transport/node.h"

namespace sluice {

class TransportConformance : public testing::TestWithParam<std::string_view> {
 protected:
  std::string_view backend() const { return GetParam(); }

  void StartBoth(const TransportOptions& options = {}) {
    server_.Start(backend(), options);
    client_.Start(backend(), options);
  }
  // Connects client to server. REQUIRES: both run.
  void ConnectBoth() {
    StatusOr<ConnectionId> connection = client_.Connect(server_.transport().address());
    ASSERT_TRUE(connection.ok()) << connection.status();
    to_server_ = *connection;
    server_.AwaitAccepted(1);
    to_client_ = server_.accepted()[0];
  }
  void StartConnected(const TransportOptions& options = {}) {
    StartBoth(options);
    ConnectBoth();
  }

  absl::Notification release_;  // for answers that are to take their time; outlives the threads that wait for it
  Node server_;
  Node client_;
  ConnectionId to_server_;  // as the client names it
  ConnectionId to_client_;  // as the server names it
};

}  // namespace sluice
