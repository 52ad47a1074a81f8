#include "core/elements.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <iterator>
#include <string>

#include "core/errors.h"

namespace ferry::python {

namespace {

struct ElementInfo {
  Element element;
  const char* name;  // as torch, numpy and ml_dtypes write it
  nb::dlpack::dtype_code code;
  std::uint8_t bits;
};
using Dlpack = nb::dlpack::dtype_code;
constexpr ElementInfo kElements[] = {
    {Element::kBf16, "bfloat16", Dlpack::Bfloat, 16},
    {Element::kFp16, "float16", Dlpack::Float, 16},
    {Element::kFp32, "float32", Dlpack::Float, 32},
    {Element::kFp64, "float64", Dlpack::Float, 64},
    {Element::kInt8, "int8", Dlpack::Int, 8},
    {Element::kUint8, "uint8", Dlpack::UInt, 8},
    {Element::kUint16, "uint16", Dlpack::UInt, 16},
    {Element::kInt32, "int32", Dlpack::Int, 32},
    {Element::kInt64, "int64", Dlpack::Int, 64},
    {Element::kBool, "bool", Dlpack::Bool, 8},
    {Element::kFp8E4m3, "float8_e4m3fn", Dlpack::Float8_E4M3FN, 8},
    {Element::kInt16, "int16", Dlpack::Int, 16},
    {Element::kUint32, "uint32", Dlpack::UInt, 32},
    {Element::kUint64, "uint64", Dlpack::UInt, 64},
};

const ElementInfo* find_element(Element element) noexcept {
  for (const ElementInfo& info : kElements) {
    if (info.element == element) return &info;
  }
  return nullptr;
}

static_assert(std::size(kElements) == kNumElements);

std::string dtype_text(nb::handle dtype) {
  nb::object name = nb::borrow(dtype);
  if (!nb::isinstance<nb::str>(dtype)) {
    name = nb::getattr(dtype, "name", nb::getattr(dtype, "__name__", nb::str(dtype)));
  }
  const auto text = nb::cast<std::string>(nb::str(name));
  return text.rfind("torch.", 0) == 0 ? text.substr(6) : text;
}

}  // namespace

const char* element_name(Element element) noexcept {
  const ElementInfo* info = find_element(element);
  return info ? info->name : "another type";
}

std::size_t element_bytes(Element element) noexcept {
  const ElementInfo* info = find_element(element);
  return info ? info->bits / 8 : 0;
}

nb::dlpack::dtype dlpack_type(Element element) noexcept {
  const ElementInfo* info = find_element(element);
  return {static_cast<std::uint8_t>(info->code), info->bits, 1};
}

Element element_of(nb::dlpack::dtype dtype) noexcept {
  for (const ElementInfo& info : kElements) {
    if (dtype.code == static_cast<std::uint8_t>(info.code) && dtype.bits == info.bits &&
        dtype.lanes == 1) {
      return info.element;
    }
  }
  return Element::kOther;
}

Element element_of(DataType type) noexcept {
  switch (type) {
    case DataType::kBf16: return Element::kBf16;
    case DataType::kFp16: return Element::kFp16;
    case DataType::kFp32: return Element::kFp32;
    case DataType::kBytes: return Element::kUint8;
    case DataType::kInt8: return Element::kInt8;
    case DataType::kFp8E4m3: return Element::kFp8E4m3;
    case DataType::kFp64: return Element::kFp64;
    case DataType::kInt16: return Element::kInt16;
    case DataType::kInt32: return Element::kInt32;
    case DataType::kInt64: return Element::kInt64;
    case DataType::kUint16: return Element::kUint16;
    case DataType::kUint32: return Element::kUint32;
    case DataType::kUint64: return Element::kUint64;
  }
  return Element::kOther;
}

Element element_named(nb::handle dtype) {
  const std::string text = dtype_text(dtype);
  for (const ElementInfo& info : kElements) {
    if (text == info.name) return info.element;
  }
  return Element::kOther;
}

Element element_from_object(nb::handle dtype) {
  const Element element = element_named(dtype);
  if (element != Element::kOther) return element;
  refuse("dtype \"{}\" is not one that ferry knows", dtype_text(dtype));
}

}  // namespace ferry::python
