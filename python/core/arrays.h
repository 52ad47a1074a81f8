// Memory of ferry as arrays of the library that the caller uses.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "core/elements.h"
#include "core/libraries.h"
#include "core/shape.h"

namespace ferry::python {

// Memory of ferry as an array of `library`; `pin` keeps the memory alive. Strides are in elements;
// empty strides: a dense array.
struct View {
  const void* data = nullptr;
  Shape shape = {};
  Shape strides = {};
  Element element = Element::kOther;
  std::shared_ptr<const void> pin = {};
};
nb::object make_array(const View& view, Library library);

// A new array of `library`, not initialised.
nb::object new_array(const Shape& shape, Element element, Library library);

}  // namespace ferry::python
