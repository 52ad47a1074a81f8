#include "core/libraries.h"

namespace ferry::python {

nb::object imported(const char* name) {
  PyObject* module = PyDict_GetItemString(PyImport_GetModuleDict(), name);
  return nb::borrow(module ? module : Py_None);
}

nb::handle attribute_of(const char* module, const char* name, nb::handle& cached) {
  if (cached.is_valid()) return cached;
  const nb::object found = imported(module);
  if (!found.is_none() && nb::hasattr(found, name)) {
    cached = nb::object(found.attr(name)).release();  // never released
  }
  return cached;
}

namespace {

bool is_instance(nb::handle object, nb::handle type) {
  return type.is_valid() &&
         PyObject_TypeCheck(object.ptr(), reinterpret_cast<PyTypeObject*>(type.ptr()));
}

nb::handle torch_tensor_type() {
  static nb::handle type;
  return attribute_of("torch", "Tensor", type);
}

}  // namespace

const ExchangeTable* torch_table() {
  static const ExchangeTable* table = nullptr;
  static bool looked = false;
  if (!looked && torch_tensor_type().is_valid()) {
    table = exchange_table(torch_tensor_type());
    looked = true;
  }
  return table;
}

Library loaded_library() {
  if (!imported("torch").is_none()) return Library::kTorch;
  return imported("numpy").is_none() ? Library::kNone : Library::kNumpy;
}

bool is_plain_tensor(nb::handle tensor) { return tensor.type().is(torch_tensor_type()); }

Library library_of(nb::handle tensor) {
  static nb::handle numpy_array;
  if (is_instance(tensor, attribute_of("numpy", "ndarray", numpy_array))) return Library::kNumpy;
  return is_instance(tensor, torch_tensor_type()) ? Library::kTorch : Library::kNone;
}

}  // namespace ferry::python
