// Ids that must not be mixed up where they meet: each is its own type over a 64-bit number.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>

namespace sluice {

template <typename Tag>
struct Id {
  uint64_t value = 0;
  auto operator<=>(const Id&) const = default;
};

using RequestId = Id<struct RequestIdTag>;          // one prompt and its generation; drawn by the gateway
using Epoch = Id<struct EpochTag>;                  // one start of one process; random, never reused
using ReservationId = Id<struct ReservationIdTag>;  // decode's lease of pages for a request, unique within an epoch
using Tenure = Id<struct TenureTag>;  // a reservation's generation: which holder of a reservation's ticket may still
                                      // write; only grows

using TokenId = int32_t;

}  // namespace sluice

template <typename Tag>
struct std::hash<sluice::Id<Tag>> {
  size_t operator()(const sluice::Id<Tag>& id) const noexcept { return std::hash<uint64_t>()(id.value); }
};
