// The network interfaces of this machine and where a socket binds that is to use one of them.
#pragma once

#include <string>

#include "transport/socket.h"

namespace sluice {

// NotFound, naming the interfaces that there are, where none of this name is up and has an address.
Status CheckInterface(const std::string& name);

// What of interface `name` (empty: of all) is up and running, as text that changes when it does.
std::string RunningInterfaces(const std::string& name);

// An address of interface `name` with `family` (AF_INET, AF_INET6) and port 0, the first that is not link-local.
// NotFound names those it has.
StatusOr<SocketAddress> InterfaceAddress(const std::string& name, int family);

// `wanted` as interface `name` has it: a wildcard becomes the interface's address, another address must be one of the
// interface's. NotFound, InvalidArgument with both values.
StatusOr<SocketAddress> BindTo(const std::string& name, const SocketAddress& wanted);

}  // namespace sluice
