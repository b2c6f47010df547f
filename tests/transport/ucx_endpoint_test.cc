// An endpoint against a peer that has the connection's secret and speaks UCX as ours does not.
#include "transport/ucx_endpoint.h"

#include <cstring>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

class Landed final : public UcxEndpoint::Handler {
 public:
  void OnProbe() override {}
  StatusOr<Landing> OnMessage(std::string_view header, size_t payload_bytes) override {
    headers.emplace_back(header);
    EXPECT_EQ(payload_bytes, 0u);
    return Landing{.token = 7};
  }
  void OnLanded(uint64_t token, size_t payload_bytes, const Status& status) override {
    EXPECT_EQ(token, 7u);
    EXPECT_EQ(payload_bytes, 0u);
    EXPECT_TRUE(status.ok()) << status;
    ++landed;
  }
  void OnFailure(const Status& why) override { ADD_FAILURE() << why; }

  std::vector<std::string> headers;
  int landed = 0;
};

// A bare UCX worker with one endpoint.
class BarePeer {
 public:
  BarePeer(ucp_context_h context, const std::string& address) {
    ucp_worker_params_t worker = {};
    worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker.thread_mode = UCS_THREAD_MODE_SINGLE;
    SLUICE_CHECK(ucp_worker_create(context, &worker, &worker_) == UCS_OK);
    ucp_ep_params_t endpoint = {};
    endpoint.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    endpoint.address = reinterpret_cast<const ucp_address_t*>(address.data());
    SLUICE_CHECK(ucp_ep_create(worker_, &endpoint, &endpoint_) == UCS_OK);
  }
  ~BarePeer() {
    if (UCS_PTR_IS_PTR(request_)) ucp_request_free(request_);
    ucp_worker_destroy(worker_);
  }
  // Announces a rendezvous of nothing.
  void SendNothing(const std::string& header) {
    ucp_request_param_t param = {};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_AM_SEND_FLAG_RNDV;
    request_ = ucp_am_send_nbx(endpoint_, /*id=*/1, header.data(), header.size(), header.data(), 0, &param);
    SLUICE_CHECK(!UCS_PTR_IS_ERR(request_));
  }
  void Progress() { ucp_worker_progress(worker_); }
  bool Sent() const { return !UCS_PTR_IS_PTR(request_) || ucp_request_check_status(request_) == UCS_OK; }

 private:
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  ucs_status_ptr_t request_ = nullptr;
};

TEST(UcxEndpoint, ARendezvousOfNothingLandsAtOnce) {
  constexpr uint64_t kSecret = 0x1234567890abcdef;
  const std::shared_ptr<UcxContext> context = *UcxContext::Create("lo");
  Landed handler;
  const auto endpoint = *UcxEndpoint::Create(context, kSecret, 64, &handler);
  BarePeer peer(context->get(), endpoint->worker_address());
  std::string header(sizeof(kSecret), '\0');
  std::memcpy(header.data(), &kSecret, sizeof(kSecret));
  peer.SendNothing(header + "nothing");
  const absl::Time too_late = absl::Now() + absl::Seconds(10);
  while ((handler.landed == 0 || !peer.Sent()) && absl::Now() < too_late) {
    peer.Progress();
    endpoint->Progress();
  }
  EXPECT_EQ(handler.headers, std::vector<std::string>{"nothing"});
  EXPECT_EQ(handler.landed, 1);
  EXPECT_TRUE(peer.Sent());
}

}  // namespace
}  // namespace sluice
