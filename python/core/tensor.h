// Tensors of Python, as callers give them (anything with DLPack or the buffer protocol): pointer,
// shape and element type.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/elements.h"
#include "core/shape.h"
#include "ferry/types.h"

namespace ferry::python {

namespace nb = nanobind;

// A caller's tensor in this address space; keeps it alive. Strides in elements; shape and strides
// are its own, read under the GIL.
struct Tensor {
  nb::object owner;  // what `data`, `shape` and `strides` lie in
  void* data = nullptr;
  std::span<const std::int64_t> shape;
  std::span<const std::int64_t> strides;
  Element element = Element::kOther;
  std::size_t item_bytes = 0;

  bool given() const noexcept { return owner.is_valid(); }
  std::int64_t dim(std::size_t i) const noexcept { return shape[i]; }
  std::int64_t size() const noexcept;
  bool dense() const noexcept;
  std::string describe() const;  // "float32 [3, 4]"
};

// Reads `object`; None gives an empty Tensor. The result of a functional collective of torch is
// waited for. Throws Error(kInvalidArgument) that begins with `name` for what is no tensor, lies on
// another device, has no memory (DTensor, FakeTensor), needs a gradient, is lazily negated, or
// (writable) is read-only.
Tensor read_tensor(nb::handle object, const char* name, bool writable = false);

// `object`, waited for; on any device. Throws Error(kInvalidArgument) that begins with `name` for a
// tensor of torch without memory. Fronts call it where they look at elements themselves.
nb::object with_memory(nb::handle object, const char* name);

// The same as read_tensor, and checks: dense, of one of the elements, of the shape (-1: any
// extent).
struct Elements {
  Element first, second = Element::kOther;  // kOther: no second one
};
struct Expected {
  const char* name;
  Elements elements;
  Shape shape;
  bool writable = false;
};
Tensor read_dense(nb::handle object, const Expected& expected);

// Throws Error(kInvalidArgument) unless `tensor` has the shape (-1: any extent).
void check_shape(const Tensor& tensor, const char* name, const Shape& shape);

// The element type as the engine names it. Throws Error(kInvalidArgument) when rows have none.
DataType data_type(const Tensor& tensor, const char* name);

}  // namespace ferry::python
