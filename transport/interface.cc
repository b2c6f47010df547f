#include "transport/interface.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/str_join.h"

namespace sluice {

namespace {

struct NamedAddress {
  std::string interface;
  SocketAddress address;
  bool running = false;  // the link is there too
};

bool IsLinkLocal(const SocketAddress& address) {
  return address.storage.ss_family == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr);
}

// Of interfaces that are up.
StatusOr<std::vector<NamedAddress>> AllAddresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return absl::UnavailableError(absl::StrCat("getifaddrs: ", std::strerror(errno)));
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  std::vector<NamedAddress> addresses;
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
    const int family = i->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    NamedAddress named{.interface = i->ifa_name, .running = (i->ifa_flags & IFF_RUNNING) != 0};
    named.address.bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&named.address.storage, i->ifa_addr, named.address.bytes);
    if (!IsLinkLocal(named.address)) addresses.push_back(std::move(named));
  }
  return addresses;
}

std::string HostOf(const SocketAddress& address) {
  const std::string text = address.ToString();
  return text.substr(0, text.rfind(':'));
}

bool SameHost(const SocketAddress& a, const SocketAddress& b) { return HostOf(a) == HostOf(b); }

std::string Listed(const std::vector<NamedAddress>& addresses) {
  return absl::StrJoin(addresses, ", ", [](std::string* out, const NamedAddress& named) {
    absl::StrAppend(out, named.interface, " (", HostOf(named.address), ")");
  });
}

StatusOr<std::vector<NamedAddress>> AddressesOf(const std::string& name) {
  SLUICE_ASSIGN_OR_RETURN(std::vector<NamedAddress> all, AllAddresses());
  std::vector<NamedAddress> own;
  std::copy_if(all.begin(), all.end(), std::back_inserter(own), [&](const auto& a) { return a.interface == name; });
  if (!own.empty()) return own;
  return absl::NotFoundError(
      absl::StrCat("no interface \"", name, "\" that is up and has an address; there are: ", Listed(all)));
}

}  // namespace

Status CheckInterface(const std::string& name) { return AddressesOf(name).status(); }

std::string RunningInterfaces(const std::string& name) {
  StatusOr<std::vector<NamedAddress>> all = AllAddresses();
  if (!all.ok()) return {};
  std::erase_if(*all, [&](const auto& a) { return !a.running || (!name.empty() && a.interface != name); });
  return Listed(*all);
}

StatusOr<SocketAddress> InterfaceAddress(const std::string& name, int family) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<NamedAddress> own, AddressesOf(name));
  for (const NamedAddress& named : own) {
    if (named.address.storage.ss_family == family) return named.address;
  }
  return absl::NotFoundError(absl::StrCat("interface \"", name, "\" has no IPv", family == AF_INET ? 4 : 6,
                                          " address; it has: ", Listed(own)));
}

StatusOr<SocketAddress> BindTo(const std::string& name, const SocketAddress& wanted) {
  if (wanted.is_wildcard()) {
    SLUICE_ASSIGN_OR_RETURN(SocketAddress bound, InterfaceAddress(name, wanted.storage.ss_family));
    bound.set_port(wanted.port());
    return bound;
  }
  SLUICE_ASSIGN_OR_RETURN(const std::vector<NamedAddress> own, AddressesOf(name));
  const bool known = std::any_of(own.begin(), own.end(), [&](const auto& a) { return SameHost(a.address, wanted); });
  if (known) return wanted;
  return absl::InvalidArgumentError(
      absl::StrCat("cannot listen on ", wanted.ToString(), " of interface \"", name, "\"; it has: ", Listed(own)));
}

}  // namespace sluice
