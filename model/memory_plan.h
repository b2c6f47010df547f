// All memory of a worker, computed before the first byte is taken: the process as it stands, weights, embedding rows in
// place, KV pool, scratch, and whatever the caller adds (staging, send buffers). A worker prints it, refuses to start
// where it does not fit, and then takes exactly this: peak resident memory is its total within a few percent.
//
// Make the plan when libraries and tokenizer stand: what they hold is counted as "process", because it is measured, not
// computed. What starts afterwards is a region of its own: kServersBytes.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"
#include "model/kv_pool.h"
#include "model/transformer.h"

namespace sluice {

struct MemoryRegion {
  std::string name;
  size_t bytes = 0;
};

struct MemoryPlan {
  std::vector<MemoryRegion> regions;

  size_t total_bytes() const;
  // "process 30.1 MiB, weights 92.1 MiB, ... KV pool of 22752 tokens 511.9 MiB, ...; together 700.3 MiB".
  std::string ToString() const;
};

// What a worker's transport, gRPC server and metrics server hold once they have served requests. They start when all
// else stands, so that this was measured beforehand: 7 MiB as they wait for the first one, 8 to 10 MiB later (x86-64,
// UCX over TCP and shared memory, one peer).
inline constexpr size_t kServersBytes = size_t{9} << 20;

// What the machine has now. `available_bytes` is what can still be taken, within a container's limit where there is
// one; `resident_bytes` is what this process holds of it already.
struct MachineMemory {
  size_t available_bytes = 0;
  size_t resident_bytes = 0;
};
StatusOr<MachineMemory> ReadMachineMemory();
// Peak resident memory of this process so far.
StatusOr<size_t> ReadPeakResidentBytes();

// Whole KV pages within `bytes`; InvalidArgument where not even one fits, naming both numbers.
StatusOr<int> KvPagesWithin(size_t bytes, const KvLayout& layout, KvCodec codec, int page_tokens);

MemoryPlan MakeMemoryPlan(const MachineMemory& machine, const Transformer::Memory& model, const KvPoolOptions& kv,
                          const std::vector<MemoryRegion>& extra);

// OK, or ResourceExhausted with the plan and the number that it exceeds: `budget_bytes` where there is one, and in any
// case what the machine has.
Status CheckFits(const MemoryPlan& plan, const MachineMemory& machine, std::optional<size_t> budget_bytes);

}  // namespace sluice
