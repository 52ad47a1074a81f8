// Element types of tensors: their names in Python, their DLPack codes, and their DataTypes.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>

#include "ferry/types.h"

namespace ferry::python {

namespace nb = nanobind;

// Element types by their field names; kOther is refused wherever it matters.
enum class Element {
  kBf16,
  kFp16,
  kFp32,
  kFp64,
  kInt8,
  kUint8,
  kUint16,  // rows of uint16 are the bits of bf16, for numpy without ml_dtypes
  kInt32,
  kInt64,
  kBool,
  kFp8E4m3,
  kInt16,  // this and the next two: in Collectives only
  kUint32,
  kUint64,
  kOther
};
inline constexpr std::size_t kNumElements = static_cast<std::size_t>(Element::kOther);
const char* element_name(Element element) noexcept;  // as torch, numpy and ml_dtypes write it
std::size_t element_bytes(Element element) noexcept;
nb::dlpack::dtype dlpack_type(Element element) noexcept;
Element element_of(nb::dlpack::dtype dtype) noexcept;
Element element_of(DataType type) noexcept;

// The element type of a dtype: "bfloat16", torch.bfloat16, numpy.float32, numpy.dtype("float32"),
// ... kOther if ferry does not know it.
Element element_named(nb::handle dtype);
// As above, but throws Error(kInvalidArgument) for a type that ferry does not know.
Element element_from_object(nb::handle dtype);

}  // namespace ferry::python
