// Tensors of Python: what a caller gives (anything with DLPack or the buffer protocol) as pointer,
// shape and element type, and ferry's memory as arrays of the caller's library.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ferry/types.h"

namespace ferry::python {

namespace nb = nanobind;

// The library whose arrays a caller uses, and gets back.
enum class Library { kTorch, kNumpy, kNone };
Library library_of(nb::handle tensor);

// Element types by their field names; kOther is refused wherever it matters.
enum class Element {
  kBf16,
  kFp16,
  kFp32,
  kFp64,
  kInt8,
  kUint8,
  kInt32,
  kInt64,
  kBool,
  kFp8E4m3,
  kOther
};
const char* element_name(Element element) noexcept;
std::size_t element_bytes(Element element) noexcept;

// A caller's tensor in this address space; keeps it alive. Strides in elements.
struct Tensor {
  nb::object owner;  // what `data` lies in
  void* data = nullptr;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  Element element = Element::kOther;

  bool given() const noexcept { return owner.is_valid(); }
  std::int64_t dim(std::size_t i) const noexcept { return shape[i]; }
  std::int64_t size() const noexcept;
  bool dense() const noexcept;
  std::string describe() const;  // "float32 [3, 4]"
};

// Reads `object`; None gives an empty Tensor. Throws Error(kInvalidArgument) that begins with
// `name` for what is no tensor, lies on another device, needs a gradient, or (writable) is
// read-only.
Tensor read_tensor(nb::handle object, const char* name, bool writable = false);

// The same, and checks: dense, of one of the elements, of the shape (-1: any extent).
struct Expected {
  const char* name;
  std::vector<Element> elements;
  std::vector<std::int64_t> shape;
  bool writable = false;
};
Tensor read_dense(nb::handle object, const Expected& expected);

// Throws Error(kInvalidArgument) unless `tensor` has the shape (-1: any extent).
void check_shape(const Tensor& tensor, const char* name, const std::vector<std::int64_t>& shape);

// The element type as the engine names it. Throws Error(kInvalidArgument) when rows have none.
DataType data_type(const Tensor& tensor, const char* name);
Element element_of(DataType type) noexcept;
// "bfloat16", torch.bfloat16, numpy.float32, ...
Element element_from_object(nb::handle dtype);

// ferry's memory as an array of `library`; `pin` keeps the memory. Strides in elements; empty:
// dense.
struct View {
  const void* data = nullptr;
  std::vector<std::size_t> shape;
  std::vector<std::int64_t> strides = {};
  Element element = Element::kOther;
  std::shared_ptr<const void> pin = {};
};
nb::object make_array(const View& view, Library library);

// A new array of `library`, not initialised.
nb::object new_array(const std::vector<std::int64_t>& shape, Element element, Library library);

}  // namespace ferry::python
