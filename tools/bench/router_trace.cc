// Reads and writes .npy files of router traces; see router_trace.h. The format is that of NumPy,
// versions 1 to 3: a magic text, the length of a header, the header as a Python dict, the elements.
#include "tools/bench/router_trace.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string_view>

#include "tools/file_bytes.h"
#include "tools/refuse.h"

namespace ferry::bench {

using tools::refuse;

namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kPrefixBytes = 8;  // the magic and two bytes of the version
constexpr std::int64_t kMostElements = std::int64_t{1} << 40;

struct Array {
  std::string_view type;  // such as "<i4"
  std::array<std::int64_t, 3> shape = {};
  std::string_view elements;
};

// The text behind `key` in the header.
std::string_view value_of(std::string_view header, std::string_view key) {
  const std::size_t at = header.find(key);
  return at == std::string_view::npos ? "" : header.substr(at + key.size());
}

Array parse(const std::string& file, std::string_view bytes) {
  const bool npy = bytes.substr(0, kMagic.size()) == kMagic && bytes.size() > kPrefixBytes + 4;
  const std::size_t length_bytes = npy && bytes[kMagic.size()] > 1 ? 4 : 2;
  std::uint32_t length = 0;
  if (npy) std::memcpy(&length, bytes.data() + kPrefixBytes, length_bytes);
  const std::size_t begin = kPrefixBytes + length_bytes;
  if (!npy || length > bytes.size() - begin) refuse("--routing ids: '{}' is no .npy file", file);
  const std::string header(bytes.substr(begin, length));
  Array array{.type = "", .shape = {}, .elements = bytes.substr(begin + length)};
  const std::string_view type = value_of(header, "'descr': '");
  for (const std::string_view known : {"|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8"}) {
    if (type.starts_with(known)) array.type = known;
  }
  if (array.type.empty() || !value_of(header, "'fortran_order': ").starts_with("False"))
    refuse("--routing ids: '{}' needs integers in C order, its header is {}", file, header);
  auto& [tokens, layers, top_k] = array.shape;
  char end = 0;
  const std::string shape(value_of(header, "'shape': "));
  if (std::sscanf(shape.c_str(), "(%ld, %ld, %ld%c", &tokens, &layers, &top_k, &end) != 4 ||
      end != ')' || tokens < 1 || layers < 1 || top_k < 1 ||
      tokens > kMostElements / layers / top_k)
    refuse("--routing ids: '{}' needs the shape [tokens, layers, top_k], its header is {}", file,
           header);
  return array;
}

std::int64_t element(const Array& array, std::int64_t index) {
  const std::size_t bytes = array.type[2] - '0';
  std::uint64_t value = 0;
  std::memcpy(&value, array.elements.data() + index * bytes, bytes);
  if (array.type[1] == 'u') return static_cast<std::int64_t>(value);
  const int unused = 64 - 8 * static_cast<int>(bytes);
  return static_cast<std::int64_t>(value << unused) >> unused;  // with its sign
}

}  // namespace

std::vector<int> router_ids(const std::string& file, int layer, int top_k, int num_experts) {
  const std::string bytes = tools::file_bytes(file, "--routing ids: ");
  const Array array = parse(file, bytes);
  const auto [tokens, layers, k_of_file] = array.shape;
  const std::int64_t needed = tokens * layers * k_of_file * (array.type[2] - '0');
  if (std::ssize(array.elements) < needed)
    refuse("--routing ids: '{}' has {} bytes of ids, need {}", file, array.elements.size(), needed);
  if (layer < 0 || layer >= layers)
    refuse("--routing ids: layer {} of '{}', which has {} layers", layer, file, layers);
  if (top_k != k_of_file)
    refuse("--routing ids: '{}' has top-k {}, but --top-k is {}", file, k_of_file, top_k);
  std::vector<int> ids;
  ids.reserve(tokens * top_k);
  for (std::int64_t token = 0; token < tokens; ++token) {
    for (int k = 0; k < top_k; ++k) {
      const std::int64_t id = element(array, (token * layers + layer) * top_k + k);
      if (id < -1 || id >= num_experts)
        refuse("--routing ids: '{}' has id {} at token {}, layer {}, k {}, but --experts is {}",
               file, id, token, layer, k, num_experts);
      ids.push_back(static_cast<int>(id));
    }
  }
  return ids;
}

void write_router_trace(const std::string& file, const std::vector<std::int32_t>& ids,
                        std::int64_t layers, std::int64_t top_k) {
  const std::int64_t tokens = std::ssize(ids) / (layers * top_k);
  std::string header = fmt::format(
      "{{'descr': '<i4', 'fortran_order': False, 'shape': ({}, {}, {}), }}", tokens, layers, top_k);
  constexpr std::size_t kAlignment = 64;  // the first element begins at a multiple
  const std::size_t taken = kPrefixBytes + 2 + header.size() + 1;
  header += std::string((kAlignment - taken % kAlignment) % kAlignment, ' ') + '\n';
  std::ofstream stream(file, std::ios::binary);
  stream << kMagic << '\1' << '\0' << static_cast<char>(header.size() & 0xff)
         << static_cast<char>(header.size() >> 8) << header;
  stream.write(reinterpret_cast<const char*>(ids.data()),
               static_cast<std::streamsize>(ids.size() * sizeof ids[0]));
  if (!stream.flush()) refuse("cannot write '{}'", file);
}

}  // namespace ferry::bench
