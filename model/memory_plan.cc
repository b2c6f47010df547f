#include "model/memory_plan.h"

#include <algorithm>
#include <fstream>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace sluice {

namespace {

std::string MiB(size_t bytes) { return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20)); }

// The number of kB behind "field:" in a file of /proc.
StatusOr<size_t> ReadKilobytes(const char* path, std::string_view field) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, field.size(), field) != 0) continue;
    size_t kilobytes = 0;
    const size_t begin = line.find_first_of("0123456789");
    const size_t end = line.find(" kB");
    if (begin < end && absl::SimpleAtoi(line.substr(begin, end - begin), &kilobytes)) return kilobytes * 1024;
  }
  return absl::UnavailableError(absl::StrCat(path, " has no ", std::string(field)));
}

// A control group's limit and use; absent files and "max" mean no limit.
size_t ReadGroupRoom() {
  std::ifstream limit_file("/sys/fs/cgroup/memory.max");
  std::ifstream used_file("/sys/fs/cgroup/memory.current");
  size_t limit = 0;
  size_t used = 0;
  if (limit_file >> limit && used_file >> used) return limit > used ? limit - used : 0;
  return std::numeric_limits<size_t>::max();
}

}  // namespace

size_t MemoryPlan::total_bytes() const {
  size_t total = 0;
  for (const MemoryRegion& region : regions) total += region.bytes;
  return total;
}

std::string MemoryPlan::ToString() const {
  return absl::StrCat(absl::StrJoin(regions, ", ",
                                    [](std::string* out, const MemoryRegion& region) {
                                      absl::StrAppend(out, region.name, " ", MiB(region.bytes));
                                    }),
                      "; together ", MiB(total_bytes()));
}

StatusOr<MachineMemory> ReadMachineMemory() {
  MachineMemory memory;
  SLUICE_ASSIGN_OR_RETURN(memory.available_bytes, ReadKilobytes("/proc/meminfo", "MemAvailable:"));
  SLUICE_ASSIGN_OR_RETURN(memory.resident_bytes, ReadKilobytes("/proc/self/status", "VmRSS:"));
  memory.available_bytes = std::min(memory.available_bytes, ReadGroupRoom());
  return memory;
}

StatusOr<size_t> ReadPeakResidentBytes() { return ReadKilobytes("/proc/self/status", "VmHWM:"); }

StatusOr<int> KvPagesWithin(size_t bytes, const KvLayout& layout, KvCodec codec, int page_tokens) {
  const size_t page_bytes = Bytes(layout, codec, page_tokens);
  if (bytes < page_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("KV memory of ", bytes, " bytes holds no page of ", page_tokens,
                                                   " tokens, which takes ", page_bytes));
  }
  return static_cast<int>(std::min<size_t>(bytes / page_bytes, std::numeric_limits<PageIndex>::max()));
}

MemoryPlan MakeMemoryPlan(const MachineMemory& machine, const Transformer::Memory& model, const KvPoolOptions& kv,
                          const std::vector<MemoryRegion>& extra) {
  MemoryPlan plan;
  const int64_t slots = int64_t{kv.pages} * kv.page_tokens;
  plan.regions = {{"process", machine.resident_bytes},
                  {"weights", model.weights_bytes},
                  {"embedding in place", model.mapped_bytes},
                  {absl::StrCat("KV pool of ", slots, " tokens"), Bytes(kv.layout, kv.codec, slots)},
                  {"scratch", model.scratch_bytes}};
  plan.regions.insert(plan.regions.end(), extra.begin(), extra.end());
  return plan;
}

Status CheckFits(const MemoryPlan& plan, const MachineMemory& machine, std::optional<size_t> budget_bytes) {
  const size_t total = plan.total_bytes();
  if (budget_bytes.has_value() && total > *budget_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the memory plan exceeds its budget of ", MiB(*budget_bytes), ": ", plan.ToString()));
  }
  const size_t room = machine.available_bytes + machine.resident_bytes;
  if (total > room) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the memory plan exceeds the ", MiB(room), " that this machine has: ", plan.ToString()));
  }
  return absl::OkStatus();
}

}  // namespace sluice
