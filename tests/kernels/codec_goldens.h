// Reads tests/data/codecs: inputs, the bytes each codec must make of them, the floats those must decode to. Aborts
// where a file is not what it should be.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/codec/codec.h"

namespace sluice {

// A tensor of a safetensors file; the caller knows its type.
struct GoldenBytes {
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;

  template <typename T>
  std::vector<T> as() const {
    const auto* begin = reinterpret_cast<const T*>(bytes.data());
    return {begin, begin + bytes.size() / sizeof(T)};
  }
};
std::map<std::string, GoldenBytes> ReadSafetensors(const std::string& name);  // a file of tests/data/codecs

struct CodecCase {
  KvCodec codec;
  std::string input;
  KvRowShape shape;
  int64_t rows;
  std::vector<float> x;            // [rows, width]
  std::vector<std::byte> encoded;  // codes plane, then scales plane
  std::vector<float> decoded;      // [rows, width]
  KvCodecCounts counts;
};
const std::vector<CodecCase>& CodecCases();  // all of codecs.json

}  // namespace sluice
