// VectorFile: cases of named arrays in one folder, raw numbers in arrays.bin and their shapes in
// manifest.json, which check.py reads. Written by the parts of oracle_vectors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "ferry/types.h"

namespace ferry::test {

using Json = nlohmann::json;
using Shape = std::vector<std::int64_t>;

class VectorFile {
 public:
  // Throws when the folder cannot be written.
  VectorFile(const std::filesystem::path& folder, std::uint64_t seed);

  // What follows belongs to this case.
  void begin_case(std::string_view kind, Json settings);

  // Little-endian numbers in row-major order.
  template <typename T>
  void add(std::string_view name, const std::vector<T>& numbers, const Shape& shape) {
    const char* const letter = std::is_floating_point_v<T> ? "f" : std::is_signed_v<T> ? "i" : "u";
    write(name, letter + std::to_string(sizeof(T)), shape, std::as_bytes(std::span(numbers)));
  }
  // Elements of `type` as unsigned integers of their bits.
  void add(std::string_view name, const std::vector<std::byte>& elements, DataType type,
           const Shape& shape);

  void finish();

 private:
  void write(std::string_view name, const std::string& number_type, const Shape& shape,
             std::span<const std::byte> bytes);

  std::ofstream arrays_;
  std::ofstream manifest_;
  std::int64_t offset_ = 0;
  Json cases_;
};

}  // namespace ferry::test
