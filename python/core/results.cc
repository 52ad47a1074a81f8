#include "core/results.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"

#include "core/bindings.h"
#include "core/errors.h"

namespace ferry::python {

namespace {

template <typename T>
constexpr Element kElementOf = Element::kOther;
template <>
constexpr Element kElementOf<std::int64_t> = Element::kInt64;
template <>
constexpr Element kElementOf<std::int32_t> = Element::kInt32;
template <>
constexpr Element kElementOf<float> = Element::kFp32;

template <typename T>
nb::object view(std::span<const T> values, const Shape& shape, Library library,
                std::shared_ptr<const void> pin) {
  return make_array(
      {.data = values.data(), .shape = shape, .element = kElementOf<T>, .pin = std::move(pin)},
      library);
}

// Adds a property that is a view of counts of the handle.
void add_counts(nb::class_<PyHandle>& type, const char* name,
                std::span<const std::int64_t> (Handle::*counts)() const noexcept, const char* doc) {
  type.def_prop_ro(
      name,
      [counts](const PyHandle& self) {
        const std::span<const std::int64_t> values = (self.handle.*counts)();
        return view(values, {std::ssize(values)}, self.library, self.handle.route());
      },
      nb::sig(fmt::format("def {}(self, /) -> Array", name).c_str()), doc);
}

void bind_handle(nb::module_& module) {
  nb::class_<PyHandle> type(
      module, "Handle", nb::is_generic(), nb::sig("class Handle(typing.Generic[Array])"),
      "The routing of a dispatch: slots and counts, without a buffer. For any number of combines "
      "and cached dispatches of its exchange. L: experts of this rank, R: ranks.");
  type.def_prop_ro(
          "num_tokens", [](const PyHandle& self) { return self.handle.num_tokens(); },
          "Tokens that this rank dispatched, T.")
      .def_prop_ro(
          "num_rows", [](const PyHandle& self) { return self.handle.num_rows(); },
          "Rows received, gaps and padding included.")
      .def_prop_ro(
          "active_ranks",
          [](const PyHandle& self) -> nb::object {
            const std::span<const int> ranks = self.handle.active_ranks();
            if (ranks.empty()) return nb::none();
            nb::list list;
            for (const int rank : ranks) list.append(rank);
            return list;
          },
          nb::sig("def active_ranks(self, /) -> list[int] | None"),
          "The ranks that took part in its dispatch, if not all: its active_ranks, or the ranks of "
          "the view. None: all.");
  add_counts(type, "tokens_per_expert", &Handle::tokens_per_expert,
             "int64 [L]: rows of each local expert.");
  add_counts(type, "aligned_tokens_per_expert", &Handle::aligned_tokens_per_expert,
             "int64 [L]: the same, rounded up to expert_alignment.");
  add_counts(type, "expert_offsets", &Handle::expert_offsets,
             "int64 [L + 1]: first row of each local expert, then num_rows; empty for rank_major.");
  add_counts(type, "running_counts", &Handle::running_counts,
             "int64 [L * R]: running sum of rows over (local expert, source rank).");
  add_counts(type, "running_rows_per_rank", &Handle::running_rows_per_rank,
             "int64 [R]: rank_major, running sum of rows over source ranks; empty otherwise.");
  add_counts(type, "tokens_per_rank", &Handle::tokens_per_rank,
             "int64 [R]: rank_major, tokens that each rank dispatched; empty otherwise.");
  add_counts(type, "rows_sent", &Handle::rows_sent,
             "int64 [R * R]: rank_major, how many of each rank's tokens went to each rank; empty "
             "otherwise.");
  type.def("__bool__", [](const PyHandle& self) { return static_cast<bool>(self.handle); })
      .def("__repr__", [](const PyHandle& self) {
        return nb::str("<ferry.Handle of {} tokens, {} rows>")
            .format(self.handle.num_tokens(), self.handle.num_rows());
      });
}

const Received& live(const PyReceived& self) {
  if (!self.kept->mine()) {
    throw Error(Code::kClosed, "these rows belong to the process that this one was forked from");
  }
  if (!(*self.kept)->handle) throw Error(Code::kClosed, "these rows were released");
  return **self.kept;
}

// Returns (L, C) of a padded layout.
std::pair<std::int64_t, std::int64_t> sections(const Received& received) {
  const auto experts = static_cast<std::int64_t>(received.handle.tokens_per_expert().size());
  if (experts > 0) FERRY_CHECK(received.num_rows % experts, ==, 0);
  return {experts, experts ? received.num_rows / experts : 0};
}

nb::object rows(const PyReceived& self) {
  const Received& received = live(self);
  Shape shape{received.num_rows, received.hidden};
  if (self.config->layout == Layout::kPadded) {
    const auto [experts, capacity] = sections(received);
    shape = {experts, capacity, received.hidden};
  }
  return make_array({.data = received.data,
                     .shape = shape,
                     .element = element_of(received.dtype),
                     .pin = received.pin},
                    self.library);
}

nb::object per_row(const PyReceived& self, std::span<const float> values) {
  const Received& received = live(self);
  const std::int64_t num_rows = received.num_rows;
  if (values.empty() && num_rows > 0) return nb::none();
  const bool by_column = self.config->layout == Layout::kRankMajor;
  return view(values, by_column ? Shape{num_rows, self.config->top_k} : Shape{num_rows},
              self.library, received.pin);
}

nb::object topk_ids(const PyReceived& self) {
  const Received& received = live(self);
  if (self.config->layout != Layout::kRankMajor) return nb::none();
  return view(received.topk_ids, {received.num_rows, self.config->top_k}, self.library,
              received.pin);
}

// The element type of scales. Scales of a wire are float32, or int32 for packed exponents; those of
// the caller keep their type.
Element scale_element(const PyReceived& self) {
  if (self.config->wire == Wire::kFp8Ue8m0) return Element::kInt32;
  if (self.config->wire != Wire::kNone) return Element::kFp32;
  return self.scale_element == Element::kOther ? Element::kUint8 : self.scale_element;
}

nb::object scales(const PyReceived& self) {
  const Received& received = live(self);
  const Scales& from = received.scales;
  if (from.data == nullptr) return nb::none();
  const Element element = scale_element(self);
  const auto bytes = static_cast<std::int64_t>(element_bytes(element));
  const bool by_column = self.config->scale_order == ScaleOrder::kColumnMajor;
  if (by_column && bytes != from.element_bytes) {
    throw Error(
        Code::kInvalidArgument,
        fmt::format(
            "token_scales has elements of {} bytes; column_major scales come in units of {}", bytes,
            from.element_bytes));
  }
  const std::int64_t columns = from.columns * from.element_bytes / bytes;
  const std::int64_t row_stride = from.row_stride / bytes;
  const std::int64_t column_stride = by_column ? from.column_stride / bytes : 1;
  View view{.data = from.data,
            .shape = {received.num_rows, columns},
            .strides = {row_stride, column_stride},
            .element = element,
            .pin = received.pin};
  if (self.config->layout == Layout::kPadded) {
    const auto [experts, capacity] = sections(received);
    view.shape = {experts, capacity, columns};
    view.strides = {from.section_stride / bytes, row_stride, column_stride};
  }
  return make_array(view, self.library);
}

}  // namespace

Handle read_handle(nb::handle object) {
  const PyHandle* handle = nullptr;
  if (!nb::try_cast(object, handle) || handle == nullptr)
    refuse("handle is a {}, need a ferry.Handle",
           nb::cast<const char*>(object.type().attr("__name__")));
  return handle->handle;
}

void bind_results(nb::module_& module) {
  bind_handle(module);
  nb::class_<PyReceived>(
      module, "Received", nb::is_generic(), nb::sig("class Received(typing.Generic[Array])"),
      "Rows received by a dispatch. Arrays are views of ferry's memory, of the library of the "
      "tokens (torch or numpy). The buffer is free for reuse when this object is released or "
      "destroyed and none of its arrays is alive. N: rows, gaps and padding included.")
      .def_prop_ro("rows", &rows, nb::sig("def rows(self, /) -> Array"),
                   "[N, H], for padded [L, C, H].")
      .def_prop_ro(
          "num_rows", [](const PyReceived& self) { return live(self).num_rows; }, "N.")
      .def_prop_ro(
          "sources",
          [](const PyReceived& self) {
            const Received& received = live(self);
            return view(received.sources, {received.num_rows, 3}, self.library, received.pin);
          },
          nb::sig("def sources(self, /) -> Array"),
          "int32 [N, 3]: source rank, by its place in handle.active_ranks if that is not None, "
          "token, k of each row; rank -1 in gaps.")
      .def_prop_ro(
          "weights", [](const PyReceived& self) { return per_row(self, live(self).weights); },
          nb::sig("def weights(self, /) -> Array | None"),
          "float32 [N], for rank_major [N, K] (0 where not local); None when no rank gave "
          "topk_weights.")
      .def_prop_ro("topk_ids", &topk_ids, nb::sig("def topk_ids(self, /) -> Array | None"),
                   "rank_major: int32 [N, K], local expert at its k, else -1. None otherwise.")
      .def_prop_ro(
          "scales", &scales, nb::sig("def scales(self, /) -> Array | None"),
          "Scales of the wire, or the caller's token_scales: [N, n], for padded [L, C, n]; "
          "None when rows have none.")
      .def_prop_ro(
          "handle",
          [](const PyReceived& self) {
            return PyHandle{live(self).handle, self.library, self.num_ranks};
          },
          nb::sig("def handle(self, /) -> Handle[Array]"),
          "The ferry.Handle for combine and cached dispatches.")
      .def(
          "release",
          [](PyReceived& self) {
            if (self.kept->mine()) (*self.kept)->release();
          },
          "Releases the rows. Arrays made before stay valid and keep the buffer.");
}

}  // namespace ferry::python
