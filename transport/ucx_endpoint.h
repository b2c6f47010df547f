// The message path of one connection: a UCX worker of its own with one endpoint. A worker each, because destroying it
// closes every socket and queue pair that could still move bytes of this connection: that is the proof that memory is
// quiet, whatever state a transfer was in. (One shared worker is cheaper but leaves such proof to each transport of
// UCX; its emulated remote writes, for one, go on for as long as the worker lives.) Of the transport's thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "transport/transport.h"
#include "transport/ucx_context.h"
#include "transport/ucx_progress.h"

namespace sluice {

class UcxEndpoint {
 public:
  // Called inside Progress; may not destroy the endpoint.
  class Handler {
   public:
    virtual ~Handler() = default;
    virtual void OnProbe() = 0;
    virtual StatusOr<Landing> OnMessage(std::string_view header, size_t payload_bytes) = 0;
    virtual void OnLanded(uint64_t token, size_t payload_bytes, const Status& status) = 0;
    // The endpoint can do no more. Called once at most.
    virtual void OnFailure(const Status& why) = 0;
  };

  // Messages that do not begin with `secret` are ignored.
  static StatusOr<std::unique_ptr<UcxEndpoint>> Create(std::shared_ptr<UcxContext> context, uint64_t secret,
                                                       size_t header_bytes_max, Handler* handler);
  // Destroys the worker, then completes what failed or is still open with Cancelled, since only now it is quiet. No
  // progress is made on the way: UCX 1.13 uses a freed socket when the peer ends it while ours is being given up with
  // data unsent (uct_tcp_iface_handle_events).
  ~UcxEndpoint();
  UcxEndpoint(const UcxEndpoint&) = delete;
  UcxEndpoint& operator=(const UcxEndpoint&) = delete;

  const std::string& worker_address() const { return worker_address_; }
  int event_fd() const { return event_fd_; }

  // REQUIRES: the address came from a peer that proved that it knows the key; UCX does not check what it parses.
  Status Connect(const std::string& worker_address, uint64_t secret);
  // REQUIRES: connected. Tells the peer's OnProbe that the way there works. The connecting side probes first and the
  // accepting side answers; `sent` is called when the probe has left.
  void SendProbe(std::function<void()> sent);
  // For an accepting side whose answer has not left: UCX 1.13 aborts the process when such an endpoint fails or is
  // destroyed (assertion in ucp_request_send_state_ff, release builds too). Nothing of it is driven any more, so it
  // touches no memory; its worker and context stay for the rest of the process.
  void Abandon();
  // REQUIRES: connected. As Transport::Send.
  void Send(std::string_view header, absl::Span<const std::byte> payload, std::function<void(Status)> done);

  // Drives what is under way; how much happened.
  unsigned Progress() { return ProgressUcxWorker(worker_); }
  // True where the event fd will tell of whatever comes next; else Progress has more to do.
  bool Arm() { return ucp_worker_arm(worker_) == UCS_OK; }

 private:
  struct Outgoing {
    UcxEndpoint* owner;
    std::string header;
    size_t payload_bytes;
    std::function<void(Status)> done;
  };
  struct Incoming {
    UcxEndpoint* owner;
    uint64_t token;
    size_t payload_bytes;
    std::vector<ucp_dt_iov_t> pieces;  // UCX reads this list until the receive is over
  };

  UcxEndpoint(std::shared_ptr<UcxContext> context, size_t header_bytes_max, uint64_t secret, Handler* handler)
      : context_(std::move(context)), header_bytes_max_(header_bytes_max), secret_(secret), handler_(handler) {}
  Status Init();
  Status Handle(unsigned message_id, ucp_am_recv_callback_t callback);
  void Post(unsigned message_id, unsigned flags, std::string_view header, absl::Span<const std::byte> payload,
            std::function<void(Status)> done);
  bool IsFromPeer(const void* header, size_t header_bytes) const;

  ucs_status_t Receive(std::string_view header, void* data, size_t bytes, bool rendezvous);
  ucs_status_t ReceiveRendezvous(const Landing& landing, void* descriptor, size_t bytes);
  void FinishSend(Outgoing* outgoing, ucs_status_t status);
  void FinishReceive(Incoming* incoming, ucs_status_t status);
  void Fail(const Status& why);

  static ucs_status_t OnActiveMessage(void* self, const void* header, size_t header_bytes, void* data, size_t bytes,
                                      const ucp_am_recv_param_t* param);
  static ucs_status_t OnProbeMessage(void* self, const void* header, size_t header_bytes, void* data, size_t bytes,
                                     const ucp_am_recv_param_t* param);
  static void OnSent(void* request, ucs_status_t status, void* outgoing);
  static void OnReceived(void* request, ucs_status_t status, size_t bytes, void* incoming);
  static void OnEndpointError(void* self, ucp_ep_h endpoint, ucs_status_t status);

  const std::shared_ptr<UcxContext> context_;  // with the transport, which may have a newer one by now
  const size_t header_bytes_max_;
  const uint64_t secret_;
  Handler* const handler_;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  int event_fd_ = -1;
  std::string worker_address_;
  uint64_t peer_secret_ = 0;
  bool failed_ = false;
  bool closing_ = false;
  std::unordered_map<Outgoing*, std::unique_ptr<Outgoing>> outgoing_;
  std::unordered_map<Incoming*, std::unique_ptr<Incoming>> incoming_;
};

}  // namespace sluice
