// Files for one test, removed with it.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "gtest/gtest.h"

namespace sluice {

class TempFolder {
 public:
  TempFolder() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    std::string name = std::string("sluice-") + test->test_suite_name() + "-" + test->name();
    for (char& c : name) {
      if (c == '/') c = '-';
    }
    path_ = std::filesystem::path(testing::TempDir()) / name;
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }

  std::string path() const { return path_.string(); }
  std::string Write(const std::string& name, std::string_view content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
    return (path_ / name).string();
  }
  // Links a file of another folder here.
  void Link(const std::filesystem::path& target) const {
    std::filesystem::create_symlink(std::filesystem::absolute(target), path_ / target.filename());
  }

 private:
  std::filesystem::path path_;
};

}  // namespace sluice
