// How fast each wire format encodes and decodes rows, beside a copy that reads a row once and
// writes half of it: one row of the table each, in cache and from memory. Calls the kernels of
// wire_formats.h.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include "bench/statistics.h"
#include "half_copy.h"
#include "kernels/kernels.h"
#include "kernels/wire_formats.h"

namespace ferry::bench {
namespace {

using internal::WireFormat;

constexpr std::int64_t kHidden = 7168;
constexpr DataType kType = DataType::kBf16;
constexpr std::size_t kRowBytes = kHidden * 2;

// Rows are timed a window at a time, all formats in turn, so that other load on the
// machine affects them alike, and few windows.
struct Size {
  const char* name;
  std::size_t windows, rows, repeats;  // rows of a window, how often it is gone over in a turn
  int turns;
};
constexpr Size kSizes[] = {{"in cache", 1, 16, 16, 400}, {"from memory", 16, 256, 1, 60}};

// Memory that begins at a cache line, as tensors do.
class Lines {
 public:
  explicit Lines(std::size_t bytes) : lines_((bytes + sizeof(Line) - 1) / sizeof(Line)) {}
  std::byte* at(std::size_t byte) { return lines_[0].bytes + byte; }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> lines_;
};

struct Format {
  std::string name;
  const WireFormat* format;
  internal::RowFactors factors;
  Lines encoded;  // every row, as large as it can get
  std::vector<double> encode_seconds = {}, decode_seconds = {};
};

// The rows that all formats encode, and where they decode them to.
struct Tokens {
  Lines rows, decoded;

  explicit Tokens(std::size_t num_rows)
      : rows(num_rows * kRowBytes), decoded(num_rows * kRowBytes) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (std::size_t at = 0; at < num_rows * kRowBytes; at += 2)
      internal::from_float(normal(random), rows.at(at), kType);
  }
};

template <class Body>
double seconds_of(Body body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Calls body(row) for each row of a window.
template <class Body>
double time_window(const Size& size, std::size_t window, Body body) {
  return seconds_of([&] {
    for (std::size_t repeat = 0; repeat < size.repeats; ++repeat) {
      for (std::size_t row = window * size.rows; row < (window + 1) * size.rows; ++row) body(row);
    }
  });
}

// Scales lie behind the elements, as they do in a slot.
std::size_t slot_bytes(const WireFormat& format) {
  return format.encoded_bytes(kHidden, kType) +
         static_cast<std::size_t>(format.num_scales(kHidden)) * sizeof(float);
}

void time_format(Format& format, Tokens& tokens, const Size& size, std::size_t window) {
  const std::size_t slot = slot_bytes(*format.format);
  const std::size_t scales = format.format->encoded_bytes(kHidden, kType);
  const std::size_t num_rows = size.windows * size.rows;
  format.encode_seconds.push_back(time_window(size, window, [&](std::size_t row) {
    std::byte* out = format.encoded.at(row * slot);
    format.format->encode({.row = tokens.rows.at(row * kRowBytes),
                           .row_type = kType,
                           .hidden = kHidden,
                           .factors = format.factors,
                           .out = out,
                           .scales = out + scales,
                           .next = tokens.rows.at((row + 1) % num_rows * kRowBytes)});
  }));
  format.decode_seconds.push_back(time_window(size, window, [&](std::size_t row) {
    const std::byte* encoded = format.encoded.at(row * slot);
    format.format->decode({.encoded = encoded,
                           .scales = encoded + scales,
                           .row_type = kType,
                           .hidden = kHidden,
                           .out = tokens.decoded.at(row * kRowBytes)});
  }));
}

std::vector<Format> all_formats(std::size_t num_rows, const float* smooth) {
  std::vector<Format> formats;
  const auto add = [&](std::string name, const WireFormat& format, internal::RowFactors factors) {
    formats.push_back({.name = std::move(name),
                       .format = &format,
                       .factors = factors,
                       .encoded = Lines(num_rows * slot_bytes(format))});
  };
  for (const Wire wire :
       {Wire::kInt8, Wire::kInt8Static, Wire::kFp8, Wire::kFp8Pow2, Wire::kFp8Ue8m0})
    add(wire_name(wire), internal::wire_format(wire), {});
  add("int8, smooth", internal::wire_format(Wire::kInt8), {smooth, true});
  for (const CombineWire wire :
       {CombineWire::kInt8Block8, CombineWire::kInt8Block128, CombineWire::kLogfmt10})
    add(wire_name(wire), internal::wire_format(wire), {});
  return formats;
}

void print(const char* name, const char* what, double gigabytes, double seconds, double plain) {
  fmt::print("{:<14}{:<8}{:7.1f} GB/s  ratio {:.2f}\n", name, what, gigabytes / seconds,
             plain / seconds);
}

// Each format has a window of its own in a turn: the one before has passed it long ago, and other
// rows have taken its place in the cache.
void measure(const Size& size) {
  const std::size_t num_rows = size.windows * size.rows;
  Lines smooth_bytes(kHidden * sizeof(float));
  auto* const smooth = reinterpret_cast<float*>(smooth_bytes.at(0));
  std::fill_n(smooth, kHidden, 1.25F);
  Tokens tokens(num_rows);
  std::vector<Format> formats = all_formats(num_rows, smooth);
  Lines halves(num_rows * kRowBytes / 2);
  std::vector<double> plain_seconds;
  for (int turn = 0; turn < size.turns; ++turn) {
    std::size_t window = static_cast<std::size_t>(turn);
    plain_seconds.push_back(time_window(size, window % size.windows, [&](std::size_t row) {
      half_copy(halves.at(row * kRowBytes / 2), tokens.rows.at(row * kRowBytes), kRowBytes);
    }));
    for (Format& format : formats) time_format(format, tokens, size, ++window % size.windows);
  }
  const double gigabytes = 1e-9 * static_cast<double>(size.rows * size.repeats * kRowBytes);
  const double plain = quantiles(plain_seconds).median;
  fmt::print("{}: {} rows of {} {}\n", size.name, num_rows, kHidden, data_type_name(kType));
  print("plain", "copy", gigabytes, plain, plain);
  for (const Format& format : formats) {
    print(format.name.c_str(), "encode", gigabytes, quantiles(format.encode_seconds).median, plain);
    print("", "decode", gigabytes, quantiles(format.decode_seconds).median, plain);
  }
}

}  // namespace
}  // namespace ferry::bench

int main() {
  for (const ferry::bench::Size& size : ferry::bench::kSizes) ferry::bench::measure(size);
}
