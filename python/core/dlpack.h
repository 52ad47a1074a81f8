// DLPack's C exchange API (DLPack 1.2): one C call, instead of a Python method and a capsule, reads
// or makes a tensor of a library that offers the API, such as torch.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace ferry::python {

namespace nb = nanobind;

// DLManagedTensorVersioned: a tensor and the function that releases it.
struct ManagedTensor {
  std::uint32_t major = 1, minor = 0;
  void* context = nullptr;
  void (*deleter)(ManagedTensor*) = nullptr;
  std::uint64_t flags = 0;
  nb::dlpack::dltensor tensor = {};
};

// DLPackExchangeAPI. Functions return 0, or -1 with a Python exception set.
struct ExchangeTable {
  std::uint32_t major, minor;
  const ExchangeTable* older;
  int (*allocate)(nb::dlpack::dltensor*, ManagedTensor**, void*,
                  void (*)(void*, const char*, const char*));
  int (*managed_from_object)(void*, ManagedTensor**);
  int (*object_from_managed)(ManagedTensor*, void** object);  // takes the tensor
  int (*view_of_object)(void*, nb::dlpack::dltensor*);        // valid as long as the object
  int (*current_stream)(std::int32_t, std::int32_t, void**);
};

// The table of a tensor type, or null when it has none of the version known here.
const ExchangeTable* exchange_table(nb::handle type);

}  // namespace ferry::python
