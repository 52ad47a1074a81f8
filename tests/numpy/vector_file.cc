#include "numpy/vector_file.h"

#include <numeric>
#include <stdexcept>

namespace ferry::test {

VectorFile::VectorFile(const std::filesystem::path& folder, std::uint64_t seed)
    : arrays_(folder / "arrays.bin", std::ios::binary),
      manifest_(folder / "manifest.json"),
      cases_{{"seed", seed}, {"cases", Json::array()}} {
  arrays_.exceptions(std::ios::badbit | std::ios::failbit);
  manifest_.exceptions(std::ios::badbit | std::ios::failbit);
}

void VectorFile::begin_case(std::string_view kind, Json settings) {
  cases_["cases"].push_back(
      {{"kind", kind}, {"settings", std::move(settings)}, {"arrays", Json::object()}});
}

void VectorFile::add(std::string_view name, const std::vector<std::byte>& elements, DataType type,
                     const Shape& shape) {
  write(name, "u" + std::to_string(element_bytes(type)), shape, elements);
}

void VectorFile::write(std::string_view name, const std::string& number_type, const Shape& shape,
                       std::span<const std::byte> bytes) {
  const std::int64_t size =
      std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  if (size * (number_type.back() - '0') != static_cast<std::int64_t>(bytes.size())) {
    throw std::logic_error(std::string(name) + " has " + std::to_string(bytes.size()) +
                           " bytes, its shape wants " + std::to_string(size) + " of type " +
                           number_type);
  }
  arrays_.write(reinterpret_cast<const char*>(bytes.data()),
                static_cast<std::streamsize>(bytes.size()));
  cases_["cases"].back()["arrays"][std::string(name)] = {
      {"type", number_type}, {"shape", shape}, {"offset", offset_}};
  offset_ += static_cast<std::int64_t>(bytes.size());
}

void VectorFile::finish() {
  manifest_ << cases_;
  manifest_.flush();
  arrays_.flush();
}

}  // namespace ferry::test
