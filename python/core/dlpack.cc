#include "core/dlpack.h"

namespace ferry::python {

const ExchangeTable* exchange_table(nb::handle type) {
  const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return nullptr;
  const auto* table =
      static_cast<const ExchangeTable*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (table && table->major > 1) table = table->older;
  return table;
}

}  // namespace ferry::python
