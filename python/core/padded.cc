// The results of DeepEP's low-latency dispatch, from a padded dispatch: counts, layout and source
// tokens of the rows of each expert, and the rows where the caller has memory for them. One call
// from Python writes them all, because decoding waits for it.
#include "core/bindings.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "base/check.h"
#include "core/errors.h"
#include "core/results.h"

namespace ferry::python {

namespace {

// The outputs, with the shapes below. An output with null data is not written.
struct Parts {
  Tensor counts, layout, source_tokens, rows, scales;
};

// Fills the layout of one expert: first row << 32 | rows, for each source rank. `running` has the
// running counts of the active ranks, ascending; none: all. Returns the number of rows of the
// expert.
std::int64_t fill_layout(std::span<const std::int64_t> running, std::int64_t before,
                         std::span<const int> active, std::span<std::int64_t> layout) {
  const auto whole = active.empty();
  std::int64_t first = 0;
  std::size_t next = 0;
  for (std::size_t rank = 0; rank < layout.size(); ++rank) {
    const bool sends = whole || (next < active.size() && active[next] == static_cast<int>(rank));
    const std::int64_t count = sends ? running[next] - before - first : 0;
    layout[rank] = first << 32 | count;
    first += count;
    next += sends ? 1 : 0;
  }
  return first;
}

void copy_rows(const Received& received, const Parts& to, std::int64_t expert, std::int64_t count) {
  const std::int64_t capacity = to.source_tokens.dim(1);
  if (to.rows.given()) {
    const auto row_bytes = static_cast<std::int64_t>(received.hidden * to.rows.item_bytes);
    const std::int64_t at = expert * capacity * row_bytes;
    std::memcpy(static_cast<std::byte*>(to.rows.data) + at,
                static_cast<const std::byte*>(received.data) + at, count * row_bytes);
  }
  if (!to.scales.given()) return;
  const Scales& from = received.scales;  // both are ordered by column
  const auto bytes = static_cast<std::int64_t>(to.scales.item_bytes);
  for (std::int64_t column = 0; column < to.scales.dim(2); ++column) {
    std::memcpy(static_cast<std::byte*>(to.scales.data) +
                    (expert * to.scales.strides[0] + column * to.scales.strides[2]) * bytes,
                static_cast<const std::byte*>(from.data) + expert * from.section_stride +
                    column * from.column_stride,
                count * bytes);
  }
}

void hand_over(const Received& received, const Parts& to) {
  const std::span<const int> active = received.handle.active_ranks();
  const auto num_ranks = static_cast<std::size_t>(to.layout.dim(1));
  const std::size_t sources = active.empty() ? num_ranks : active.size();
  const std::int64_t capacity = to.source_tokens.dim(1);
  const std::span<const std::int64_t> running = received.handle.running_counts();
  FERRY_CHECK(std::ssize(running) % static_cast<std::ptrdiff_t>(sources), ==, 0);
  FERRY_CHECK(std::ssize(received.sources), ==, 3 * received.num_rows);
  for (std::int64_t expert = 0; expert < to.layout.dim(0); ++expert) {
    const std::int64_t before = expert ? running[expert * sources - 1] : 0;
    const std::int64_t count =
        fill_layout(running.subspan(expert * sources, sources), before, active,
                    {static_cast<std::int64_t*>(to.layout.data) + expert * num_ranks, num_ranks});
    static_cast<std::int32_t*>(to.counts.data)[expert] = static_cast<std::int32_t>(count);
    auto* tokens = static_cast<std::int32_t*>(to.source_tokens.data) + expert * capacity;
    for (std::int64_t row = 0; row < count; ++row)
      tokens[row] = received.sources[(expert * capacity + row) * 3 + 1];
    std::fill(tokens + count, tokens + capacity, -1);
    copy_rows(received, to, expert, count);
  }
}

}  // namespace

void bind_padded(nb::module_& module) {
  module.def(
      "hand_over_padded",
      [](const PyReceived& received, nb::handle counts, nb::handle layout, nb::handle source_tokens,
         nb::handle rows, nb::handle scales) {
        const Parts to{
            read_dense(counts, {"counts", {Element::kInt32}, {-1}, true}),
            read_dense(layout, {"layout", {Element::kInt64}, {-1, -1}, true}),
            read_dense(source_tokens, {"source_tokens", {Element::kInt32}, {-1, -1}, true}),
            read_tensor(rows, "rows", true), read_tensor(scales, "scales", true)};
        without_gil([&] { hand_over(**received.kept, to); });
      },
      nb::arg("received"), nb::arg("counts"), nb::arg("layout"), nb::arg("source_tokens"),
      nb::arg("rows").none(), nb::arg("scales").none(),
      "Fills counts int32 [L], layout int64 [L, R] (first row << 32 | rows) and source_tokens "
      "int32 "
      "[L, C] (-1 in gaps). Copies the received rows and scales into rows [L, C, H] and scales "
      "[L, C, n], which is ordered by column, unless these are None.");
}

}  // namespace ferry::python
