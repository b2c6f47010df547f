// The file of a KvPark, which has no name, as this process has it open: for tests that harm it.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

namespace sluice {

// Its descriptor; -1 where there is none.
inline int ParkedFileDescriptor() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone);
    if (target.find("sluice-parked-kv") != std::string::npos) return std::stoi(entry.path().filename());
  }
  return -1;
}

}  // namespace sluice
