#include "transport/backends.h"

#include "absl/strings/str_join.h"
#include "transport/faulty.h"
#include "transport/loopback.h"
#include "transport/ucx.h"

namespace sluice {

namespace {

template <TransportFactory real>
StatusOr<std::unique_ptr<Transport>> CreateFaulty(const TransportOptions& options, Receiver* receiver) {
  return CreateFaultyTransport(real, options, receiver);
}

constexpr TransportBackend kBackends[] = {
    {.name = "loopback",
     .crosses_processes = false,
     .peers_can_be_silent = false,
     .takes_faults = false,
     .create = CreateLoopbackTransport},
    {.name = "ucx",
     .crosses_processes = true,
     .peers_can_be_silent = true,
     .takes_faults = false,
     .create = CreateUcxTransport},
    {.name = "faulty-loopback",
     .crosses_processes = false,
     .peers_can_be_silent = false,
     .takes_faults = true,
     .create = CreateFaulty<CreateLoopbackTransport>},
    {.name = "faulty-ucx",
     .crosses_processes = true,
     .peers_can_be_silent = true,
     .takes_faults = true,
     .create = CreateFaulty<CreateUcxTransport>},
};

}  // namespace

absl::Span<const TransportBackend> TransportBackends() { return kBackends; }

StatusOr<std::unique_ptr<Transport>> CreateTransport(std::string_view backend, const TransportOptions& options,
                                                     Receiver* receiver) {
  SLUICE_RETURN_IF_ERROR(WithContext(options.Validate(), "transport options"));
  for (const TransportBackend& candidate : kBackends) {
    if (candidate.name != backend) continue;
    if (!options.faults.rules.empty() && !candidate.takes_faults)
      return absl::InvalidArgumentError(absl::StrCat("transport options: there are ", options.faults.rules.size(),
                                                     " rules of faults, and ", std::string(backend), " makes none"));
    if (!options.interface.empty() && !candidate.crosses_processes)
      return absl::InvalidArgumentError(absl::StrCat("transport options: interface is \"", options.interface,
                                                     "\", and ", std::string(backend), " has none"));
    return candidate.create(options, receiver);
  }
  auto append_name = [](std::string* out, const TransportBackend& b) { out->append(b.name); };
  return absl::NotFoundError(absl::StrCat("no transport is named \"", std::string(backend),
                                          "\"; there are: ", absl::StrJoin(kBackends, ", ", append_name)));
}

}  // namespace sluice
