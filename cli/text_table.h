// Tables for people to read.
#pragma once

#include <algorithm>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace sluice {

// Rows of cells, the first one the heads; columns as wide as their widest cell.
class TextTable {
 public:
  // The first `left` columns are words, the others numbers.
  TextTable(size_t left, std::vector<std::string> heads) : left_(left), rows_{std::move(heads)} {}
  void Add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

  void Print(std::ostream& out) const {
    std::vector<size_t> widths(rows_[0].size());
    for (const auto& row : rows_) {
      for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
    for (const auto& row : rows_) {
      std::string line;
      for (size_t i = 0; i < row.size(); ++i) {
        const std::string pad(widths[i] - row[i].size(), ' ');
        absl::StrAppend(&line, "  ", i < left_ ? row[i] + pad : pad + row[i]);
      }
      line.erase(line.find_last_not_of(' ') + 1);
      out << line << "\n";
    }
  }

 private:
  size_t left_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace sluice
