// Given: the arguments of a call by name, as pointers, shapes and numbers.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/errors.h"
#include "core/tensor.h"
#include "ferry/cann_parameters.h"

namespace ferry::python {

// An argument that is missing or None gives an empty value or 0. An argument that cannot be read
// gives Error(kInvalidArgument) that begins with its name. Python keeps the tensors alive during
// the call, so their addresses are enough.
class Given {
 public:
  explicit Given(nb::dict values) : values_(std::move(values)) {}

  nb::object object(const char* name) const { return values_.attr("get")(name); }
  void need(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      if (object(name).is_none()) refuse("{} is None, need a tensor", name);
    }
  }

  std::int64_t integer(const char* name) const { return value<std::int64_t>(name, "an integer"); }
  float real(const char* name) const { return value<float>(name, "a number"); }
  std::string_view text(const char* name) const {
    const nb::object given = object(name);
    if (given.is_none()) return {};
    if (!nb::isinstance<nb::str>(given)) refuse_value(name, given, "a string");
    return nb::borrow<nb::str>(given).c_str();
  }

  Tensor tensor(const char* name) const { return read_tensor(object(name), name); }
  Tensor dense(const char* name, Element element, const Shape& shape, bool writable = false) const {
    return read_dense(object(name), {name, {element}, shape, writable});
  }
  template <typename T>
  std::span<T> vector(const char* name, Element element) const {
    const Tensor read = dense(name, element, {-1}, !std::is_const_v<T>);
    return {static_cast<T*>(read.data), read.given() ? static_cast<std::size_t>(read.size()) : 0};
  }
  // The shape is [rows, columns], or [rows], which gives a matrix of one column.
  template <typename T>
  cann::Matrix<const T> matrix(const char* name, Element element) const {
    const std::size_t dims = tensor(name).shape.size();
    const Tensor read = dense(name, element, dims == 1 ? Shape{-1} : Shape{-1, -1});
    if (!read.given()) return {};
    return {static_cast<const T*>(read.data), read.dim(0), dims == 1 ? 1 : read.dim(1)};
  }
  // [rows, H] of contiguous rows, which may have a pitch. int32 stands for eight packed int4 in
  // CANN, which travel unchanged as bytes.
  Rows rows(const char* name) const {
    const Tensor read = tensor(name);
    if (!read.given()) return {};
    check_shape(read, name, {-1, -1});
    const bool packed = read.element == Element::kInt32;
    const std::int64_t hidden = read.dim(1);
    const auto bytes = static_cast<std::int64_t>(element_bytes(read.element));
    Rows rows{read.data, read.dim(0), packed ? hidden * bytes : hidden,
              packed ? DataType::kBytes : data_type(read, name)};
    if (read.dense()) return rows;
    if ((hidden > 1 && read.strides[1] != 1) || read.strides[0] < hidden)
      refuse("{} ({}) has strides [{}, {}]: need contiguous rows", name, read.describe(),
             read.strides[0], read.strides[1]);
    rows.pitch_bytes = read.strides[0] * bytes;
    return rows;
  }

 private:
  template <typename T>
  T value(const char* name, const char* kind) const {
    const nb::object given = object(name);
    T read{};
    if (!given.is_none() && !nb::try_cast(given, read)) refuse_value(name, given, kind);
    return read;
  }
  [[noreturn]] static void refuse_value(const char* name, nb::handle given, const char* kind) {
    refuse("{} is {}, need {}", name, nb::cast<std::string>(nb::repr(given)), kind);
  }

  nb::dict values_;
};

}  // namespace ferry::python
