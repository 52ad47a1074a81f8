#include "core/experts.h"

#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "core/arrays.h"

namespace ferry::python {

namespace {

// Experts whose rows are adjacent in memory.
struct Run {
  ExpertRows all = {};                    // the first expert, with the rows of the run
  std::vector<std::int64_t> counts = {};  // [L]
};

std::vector<Run> runs_of(std::span<const ExpertRows> ready, int num_local) {
  std::vector<Run> runs;
  const std::byte* end = nullptr;  // end of the previous expert's rows
  for (const ExpertRows& each : ready) {
    const Rows& rows = each.rows;
    FERRY_CHECK(each.expert, >=, 0);
    FERRY_CHECK(each.expert, <, num_local);
    if (runs.empty() || rows.data != end)
      runs.push_back({each, std::vector<std::int64_t>(num_local)});
    else
      runs.back().all.rows.num_rows += rows.num_rows;
    runs.back().counts[each.expert] = rows.num_rows;
    end = static_cast<const std::byte*>(rows.data) +
          rows.num_rows * rows.hidden * element_bytes(rows.dtype);
  }
  return runs;
}

nb::object array_of(const ExpertRows& run, const void* data, DataType type, Library library) {
  return make_array({.data = data,
                     .shape = {run.rows.num_rows, run.rows.hidden},
                     .element = element_of(type),
                     .pin = run.pin},
                    library);
}

nb::object scales_of(const ExpertRows& run, Wire wire, Library library) {
  const Scales& scales = run.scales;
  const auto in_elements = [&](std::int64_t bytes) { return bytes / scales.element_bytes; };
  return make_array({.data = scales.data,
                     .shape = {run.rows.num_rows, scales.columns},
                     .strides = {in_elements(scales.row_stride), in_elements(scales.column_stride)},
                     .element = wire == Wire::kFp8Ue8m0 ? Element::kInt32 : Element::kFp32,
                     .pin = run.pin},
                    library);
}

}  // namespace

void call_experts(nb::handle experts, std::span<const ExpertRows> ready, int num_local,
                  const ExchangeConfig& config, Library library) {
  for (const auto& [all, counts] : runs_of(ready, num_local)) {
    const nb::object rows = array_of(all, all.rows.data, all.rows.dtype, library);
    const nb::object out = array_of(all, all.out, config.dtype, library);
    if (config.wire != Wire::kNone && all.scales.data != nullptr)
      experts(rows, counts, out, scales_of(all, config.wire, library));
    else
      experts(rows, counts, out);
  }
}

}  // namespace ferry::python
