// The libraries whose arrays callers use. They are looked up among the loaded modules and never
// imported.
#pragma once

#include <nanobind/nanobind.h>

#include "core/dlpack.h"

namespace ferry::python {

namespace nb = nanobind;

// The library of the arrays of a call. Results are arrays of the same library.
enum class Library { kTorch, kNumpy, kNone };
Library library_of(nb::handle tensor);
// Whether `tensor` is a torch.Tensor, and not of a subclass.
bool is_plain_tensor(nb::handle tensor);
// torch if it is loaded, else numpy if it is loaded, else none.
Library loaded_library();

// A module that is already imported, or None.
nb::object imported(const char* name);

// The attribute `name` of an imported module; each call looks it up until it is found.
nb::handle attribute_of(const char* module, const char* name, nb::handle& cached);

// The DLPack exchange table of torch; null without torch, and for a torch that has no table.
const ExchangeTable* torch_table();

}  // namespace ferry::python
