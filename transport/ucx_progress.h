// Drives a UCX worker, around a use after free of UCX 1.13's tcp transport: for a socket that is both readable and
// writable it calls the reader, which frees the socket's state when the peer has gone, and then the writer on what was
// freed (uct_tcp_iface_handle_events; the same in later versions). A peer that dies while data for it waits is exactly
// that. So inside this call, and nowhere else, epoll_wait reports such a socket as readable only; it is level-triggered
// there, and what is writable is told next time.
#pragma once

#include "ucp/api/ucp.h"

namespace sluice {

// ucp_worker_progress. How much happened.
unsigned ProgressUcxWorker(ucp_worker_h worker);

}  // namespace sluice
