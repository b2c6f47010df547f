#include "transport/ucx_endpoint.h"

#include <cstring>

namespace sluice {

namespace {

constexpr unsigned kMessageId = 1;
constexpr unsigned kProbeId = 2;

// Up to here a payload is copied into the message; beyond it, it goes from its memory into its landing.
constexpr size_t kEagerBytesMax = 4096;

}  // namespace

StatusOr<std::unique_ptr<UcxEndpoint>> UcxEndpoint::Create(std::shared_ptr<UcxContext> context, uint64_t secret,
                                                           size_t header_bytes_max, Handler* handler) {
  std::unique_ptr<UcxEndpoint> endpoint(new UcxEndpoint(std::move(context), header_bytes_max, secret, handler));
  SLUICE_RETURN_IF_ERROR(endpoint->Init());
  return endpoint;
}

Status UcxEndpoint::Init() {
  ucp_worker_params_t params = {};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  ucs_status_t status = ucp_worker_create(context_->get(), &params, &worker_);
  if (status != UCS_OK) return UcxError("ucp_worker_create", status);

  status = ucp_worker_get_efd(worker_, &event_fd_);
  if (status != UCS_OK) return UcxError("ucp_worker_get_efd", status);

  SLUICE_RETURN_IF_ERROR(Handle(kMessageId, OnActiveMessage));
  SLUICE_RETURN_IF_ERROR(Handle(kProbeId, OnProbeMessage));

  ucp_worker_attr_t attributes = {};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER | UCP_WORKER_ATTR_FIELD_ADDRESS;
  status = ucp_worker_query(worker_, &attributes);
  if (status != UCS_OK) return UcxError("ucp_worker_query", status);
  worker_address_.assign(reinterpret_cast<const char*>(attributes.address), attributes.address_length);
  ucp_worker_release_address(worker_, attributes.address);
  if (attributes.max_am_header < header_bytes_max_ + sizeof(secret_))
    return absl::FailedPreconditionError(absl::StrCat("headers of ", header_bytes_max_ + sizeof(secret_),
                                                      " bytes are needed, UCX takes ", attributes.max_am_header));
  return absl::OkStatus();
}

Status UcxEndpoint::Handle(unsigned message_id, ucp_am_recv_callback_t callback) {
  ucp_am_handler_param_t handler = {};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = message_id;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = callback;
  handler.arg = this;
  const ucs_status_t status = ucp_worker_set_am_recv_handler(worker_, &handler);
  return status == UCS_OK ? absl::OkStatus() : UcxError("ucp_worker_set_am_recv_handler", status);
}

UcxEndpoint::~UcxEndpoint() {
  closing_ = true;
  if (endpoint_ != nullptr) {
    ucp_request_param_t param = {};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    const ucs_status_ptr_t request = ucp_ep_close_nbx(endpoint_, &param);
    if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
  }
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  for (auto& [key, outgoing] : outgoing_) outgoing->done(absl::CancelledError("the connection was closed"));
  for (auto& [key, incoming] : incoming_)
    handler_->OnLanded(incoming->token, 0, absl::CancelledError("the connection was closed"));
}

Status UcxEndpoint::Connect(const std::string& worker_address, uint64_t secret) {
  peer_secret_ = secret;
  ucp_ep_params_t params = {};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(worker_address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = OnEndpointError;
  params.err_handler.arg = this;
  const ucs_status_t status = ucp_ep_create(worker_, &params, &endpoint_);
  return status == UCS_OK ? absl::OkStatus() : UcxError("ucp_ep_create", status);
}

void UcxEndpoint::SendProbe(std::function<void()> sent) {
  Post(kProbeId, UCP_AM_SEND_FLAG_EAGER | UCP_AM_SEND_FLAG_REPLY, {}, {},
       [sent = std::move(sent)](const Status& status) {
         if (status.ok()) sent();
       });
}

void UcxEndpoint::Abandon() {
  context_->Keep();
  worker_ = nullptr;
  endpoint_ = nullptr;
}

// Life of a request, step 6: an active message; a large payload goes by rendezvous into the memory that the receiver
// names when it has seen the header.
void UcxEndpoint::Send(std::string_view header, absl::Span<const std::byte> payload, std::function<void(Status)> done) {
  Post(kMessageId, payload.size() > kEagerBytesMax ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER, header, payload,
       std::move(done));
}

void UcxEndpoint::Post(unsigned message_id, unsigned flags, std::string_view header,
                       absl::Span<const std::byte> payload, std::function<void(Status)> done) {
  auto owned = std::make_unique<Outgoing>(Outgoing{this, {}, payload.size(), std::move(done)});
  Outgoing* outgoing = owned.get();
  outgoing->header.reserve(sizeof(peer_secret_) + header.size());
  outgoing->header.append(reinterpret_cast<const char*>(&peer_secret_), sizeof(peer_secret_));
  outgoing->header.append(header);
  outgoing_.emplace(outgoing, std::move(owned));

  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = flags;
  param.cb.send = OnSent;
  param.user_data = outgoing;
  const ucs_status_ptr_t request = ucp_am_send_nbx(endpoint_, message_id, outgoing->header.data(),
                                                   outgoing->header.size(), payload.data(), payload.size(), &param);
  if (!UCS_PTR_IS_PTR(request)) FinishSend(outgoing, UCS_PTR_STATUS(request));
}

void UcxEndpoint::OnSent(void* request, ucs_status_t status, void* user_data) {
  auto* outgoing = static_cast<Outgoing*>(user_data);
  ucp_request_free(request);
  outgoing->owner->FinishSend(outgoing, status);
}

// A failed operation ends the endpoint and is reported when the worker is gone: until then its memory may be touched.
void UcxEndpoint::FinishSend(Outgoing* outgoing, ucs_status_t status) {
  if (status != UCS_OK) return Fail(UcxError("send", status));
  const auto node = outgoing_.extract(outgoing);
  outgoing->done(absl::OkStatus());
}

ucs_status_t UcxEndpoint::OnActiveMessage(void* self, const void* header, size_t header_bytes, void* data, size_t bytes,
                                          const ucp_am_recv_param_t* param) {
  auto* endpoint = static_cast<UcxEndpoint*>(self);
  if (!endpoint->IsFromPeer(header, header_bytes)) return UCS_OK;
  const bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  const std::string_view all(static_cast<const char*>(header), header_bytes);
  return endpoint->Receive(all.substr(sizeof(endpoint->secret_)), data, bytes, rendezvous);
}

ucs_status_t UcxEndpoint::OnProbeMessage(void* self, const void* header, size_t header_bytes, void*, size_t,
                                         const ucp_am_recv_param_t*) {
  auto* endpoint = static_cast<UcxEndpoint*>(self);
  if (endpoint->IsFromPeer(header, header_bytes)) endpoint->handler_->OnProbe();
  return UCS_OK;
}

bool UcxEndpoint::IsFromPeer(const void* header, size_t header_bytes) const {
  return header_bytes >= sizeof(secret_) && std::memcmp(header, &secret_, sizeof(secret_)) == 0;
}

// Returning UCS_OK without a started receive takes the message off the wire and completes the peer's send.
ucs_status_t UcxEndpoint::Receive(std::string_view header, void* data, size_t bytes, bool rendezvous) {
  if (failed_ || closing_) return UCS_OK;
  const StatusOr<Landing> landing = handler_->OnMessage(header, bytes);
  if (!landing.ok()) {
    Fail(landing.status());
    return UCS_OK;
  }
  if (landing->drop) return UCS_OK;
  if (const Status fits = landing->Check(bytes); !fits.ok()) {
    handler_->OnLanded(landing->token, 0, fits);
    Fail(fits);
    return UCS_OK;
  }
  // Nothing of an empty payload is left to be fetched, however its sender announced it.
  if (rendezvous && bytes > 0) return ReceiveRendezvous(*landing, data, bytes);
  landing->Copy({static_cast<const std::byte*>(data), bytes});
  handler_->OnLanded(landing->token, bytes, absl::OkStatus());
  return UCS_OK;
}

ucs_status_t UcxEndpoint::ReceiveRendezvous(const Landing& landing, void* descriptor, size_t bytes) {
  auto owned = std::make_unique<Incoming>(Incoming{this, landing.token, bytes, {}});
  Incoming* incoming = owned.get();
  incoming_.emplace(incoming, std::move(owned));
  for (const absl::Span<std::byte>& piece : landing.memory) {
    if (!piece.empty()) incoming->pieces.push_back({piece.data(), piece.size()});
  }
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.recv_am = OnReceived;
  param.user_data = incoming;
  void* memory = incoming->pieces.front().buffer;
  size_t count = bytes;
  if (incoming->pieces.size() > 1) {
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
    param.datatype = UCP_DATATYPE_IOV;
    memory = incoming->pieces.data();
    count = incoming->pieces.size();
  }
  const ucs_status_ptr_t request = ucp_am_recv_data_nbx(worker_, descriptor, memory, count, &param);
  if (!UCS_PTR_IS_PTR(request)) FinishReceive(incoming, UCS_PTR_STATUS(request));
  return UCS_INPROGRESS;
}

void UcxEndpoint::OnReceived(void* request, ucs_status_t status, size_t, void* user_data) {
  auto* incoming = static_cast<Incoming*>(user_data);
  ucp_request_free(request);
  incoming->owner->FinishReceive(incoming, status);
}

void UcxEndpoint::FinishReceive(Incoming* incoming, ucs_status_t status) {
  if (status != UCS_OK) return Fail(UcxError("receive", status));
  const auto node = incoming_.extract(incoming);
  handler_->OnLanded(incoming->token, incoming->payload_bytes, absl::OkStatus());
}

void UcxEndpoint::OnEndpointError(void* self, ucp_ep_h, ucs_status_t status) {
  static_cast<UcxEndpoint*>(self)->Fail(UcxError("the peer's data path broke", status));
}

void UcxEndpoint::Fail(const Status& why) {
  if (std::exchange(failed_, true) || closing_) return;
  handler_->OnFailure(why);
}

}  // namespace sluice
