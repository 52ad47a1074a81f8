// The units of messages between nodes: rows with their destinations, the formats and the summands
// of sums. A unit that was read is written again, and must have the same bytes.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "exchange/internode/message_layout.h"
#include "fuzz/layouts.h"

namespace {

using namespace ferry::internal;
using Bytes = std::span<const std::byte>;

void read_rows(const WindowLayout& layout, Bytes body) {
  RowUnit unit;
  while (const std::size_t bytes = read_row_unit(layout, body, unit)) {
    if (bytes > body.size() || bytes != row_unit_bytes(layout, unit.num_destinations)) std::abort();
    Destination destination;
    for (int i = 0; i < unit.num_destinations; ++i) {
      if (!read_destination(layout, ferry::fuzz::kRanks, unit, i, destination)) continue;
      if (destination.rank < 0 || destination.rank >= ferry::fuzz::kRanks) std::abort();
    }
    std::vector<std::int64_t> all(static_cast<std::size_t>(unit.num_destinations));
    std::iota(all.begin(), all.end(), 0);
    std::vector<std::byte> again(bytes);
    write_row_unit(layout, unit, all, again);
    RowUnit same;
    if (read_row_unit(layout, again, same) != bytes) std::abort();
    if (!std::equal(same.row.begin(), same.row.end(), unit.row.begin(), unit.row.end()))
      std::abort();
    body = body.subspan(bytes);
  }
}

void read_sums(const WindowLayout& layout, Bytes body) {
  ByteReader reader(body);
  SumFormat format;
  if (!read_format(reader, static_cast<std::int64_t>(layout.row_bytes()), format)) return;
  SumUnit unit;
  while (reader.remaining() > 0 && read_sum_unit(reader, format.tp_size, unit)) {
    std::vector<std::byte> terms;
    for (int i = 0; i < unit.num_summands; ++i) append_summand(unit[i], unit.tp_size, terms);
    if (!std::equal(terms.begin(), terms.end(), unit.terms.begin(), unit.terms.end())) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const WindowLayout& layout = ferry::fuzz::layout(data[0]);
  const Bytes body = std::as_bytes(std::span(data, size)).subspan(1);
  read_rows(layout, body);
  read_sums(layout, body);
  return 0;
}
