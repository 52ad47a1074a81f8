// Tensors of Python, which are objects with DLPack or the buffer protocol: pointer, shape and
// element type.
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

// A tensor of the caller. `owner` keeps its memory alive. Strides are in elements. Shape and
// strides lie in the caller's object, and are read with the GIL.
struct Tensor {
  nb::object owner;  // has the memory of `data`, `shape` and `strides`
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

// Reads `object`; None gives an empty Tensor. Waits for the result of a functional collective of
// torch. Throws Error(kInvalidArgument) that begins with `name` for an object that is not a tensor,
// lies on another device, has no memory (DTensor, FakeTensor), needs a gradient, is lazily negated,
// or is read-only where `writable` is true.
Tensor read_tensor(nb::handle object, const char* name, bool writable = false);

// Returns `object`, or the result of a functional collective once it has arrived; on any device.
// Throws Error(kInvalidArgument) that begins with `name` for a tensor of torch without memory.
// Fronts call it before they read elements themselves.
nb::object with_memory(nb::handle object, const char* name);

// Reads as read_tensor does, and checks that the tensor is dense and has one of the elements and
// the shape (-1: any extent).
struct Elements {
  Element first, second = Element::kOther;  // kOther: only `first` is allowed
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

// The element type as a DataType. Throws Error(kInvalidArgument) for a type that rows cannot have.
DataType data_type(const Tensor& tensor, const char* name);

}  // namespace ferry::python
