// The libraries whose arrays callers use. Looked for among the modules that are loaded, never
// imported. Used by tensor.cc and arrays.cc.
#pragma once

#include <nanobind/nanobind.h>

#include "core/dlpack.h"

namespace ferry::python {

namespace nb = nanobind;

// The library whose arrays a caller uses, and gets back.
enum class Library { kTorch, kNumpy, kNone };
Library library_of(nb::handle tensor);
// Whether it is a torch.Tensor and of no subclass.
bool is_plain_tensor(nb::handle tensor);
// torch if it is loaded, else numpy if that is.
Library loaded_library();

// A module that is already imported, or None: nobody who does not use a library has it loaded.
nb::object imported(const char* name);

// The attribute `name` of a module that is imported; looked up again until it is there.
nb::handle attribute_of(const char* module, const char* name, nb::handle& cached);

// torch's table, or null without torch, or with one that has none.
const ExchangeTable* torch_table();

}  // namespace ferry::python
