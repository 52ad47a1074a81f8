// ferry's memory as arrays of a caller's library.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "core/elements.h"
#include "core/libraries.h"
#include "core/shape.h"

namespace ferry::python {

// ferry's memory as an array of `library`; `pin` keeps the memory. Strides in elements; empty:
// dense.
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
