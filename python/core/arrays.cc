#include "core/arrays.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include "base/check.h"
#include "core/dlpack.h"
#include "core/forked.h"

namespace ferry::python {

namespace {

// The memory of a new tensor of torch: the pin, and the shape and strides to which DLPack points.
struct Exported {
  explicit Exported(const View& view)
      : pin(view.pin),
        shape(view.shape),
        strides(view.strides.empty() ? dense_strides(view.shape) : view.strides) {}

  Kept<std::shared_ptr<const void>> pin;
  Shape shape, strides;
  ManagedTensor managed = {};
};

nb::object make_by_table(const View& view, nb::dlpack::dtype dtype, const ExchangeTable& table) {
  auto exported = std::make_unique<Exported>(view);
  exported->managed.context = exported.get();
  exported->managed.deleter = [](ManagedTensor* managed) {
    delete static_cast<Exported*>(managed->context);
  };
  exported->managed.tensor = {.data = const_cast<void*>(view.data),
                              .device = {nb::device::cpu::value, 0},
                              .ndim = static_cast<std::int32_t>(view.shape.size()),
                              .dtype = dtype,
                              .shape = const_cast<std::int64_t*>(exported->shape.data()),
                              .strides = const_cast<std::int64_t*>(exported->strides.data())};
  void* object = nullptr;
  if (table.object_from_managed(&exported.release()->managed, &object) != 0)
    throw nb::python_error();
  return nb::steal(static_cast<PyObject*>(object));
}

}  // namespace

nb::object make_array(const View& view, Library library) {
  FERRY_CHECK(view.strides.empty() || view.strides.size() == view.shape.size(), ==, true);
  // An element type that a library cannot import is imported as integers of the same width.
  const bool foreign = view.element == Element::kFp8E4m3 ||
                       (view.element == Element::kBf16 && library != Library::kTorch);
  nb::dlpack::dtype dtype = dlpack_type(view.element);
  if (foreign) dtype.code = static_cast<std::uint8_t>(nb::dlpack::dtype_code::UInt);
  if (library == Library::kTorch && !foreign && torch_table())
    return make_by_table(view, dtype, *torch_table());
  const nb::capsule owner(new Kept<std::shared_ptr<const void>>(view.pin), [](void* pin) noexcept {
    delete static_cast<Kept<std::shared_ptr<const void>>*>(pin);
  });
  void* data = const_cast<void*>(view.data);
  const std::int64_t* strides = view.strides.empty() ? nullptr : view.strides.data();
  const auto as = [&](auto framework) {
    return nb::cast(nb::ndarray<decltype(framework)>(
        data, view.shape.size(), reinterpret_cast<const std::size_t*>(view.shape.data()), owner,
        strides, dtype, nb::device::cpu::value, 0, 'C'));
  };
  if (library == Library::kNone) return as(nb::memview());
  nb::object array = library == Library::kTorch ? as(nb::pytorch()) : as(nb::numpy());
  if (!foreign) return array;
  // bf16 and fp8 become types of torch or ml_dtypes where these exist, else they stay integers.
  const nb::object types = imported(library == Library::kTorch ? "torch" : "ml_dtypes");
  const char* name = element_name(view.element);
  if (types.is_none() || !nb::hasattr(types, name)) return array;
  return array.attr("view")(types.attr(name));
}

nb::object new_array(const Shape& shape, Element element, Library library) {
  if (library == Library::kTorch) {
    static nb::handle empty, dtypes[kNumElements];
    nb::handle& dtype = dtypes[static_cast<std::size_t>(element)];
    attribute_of("torch", element_name(element), dtype);
    if (!dtype.is_valid()) attribute_of("torch", "uint8", dtype);  // an older torch has no fp8
    nb::list extents;
    for (const std::int64_t extent : shape) extents.append(extent);
    return attribute_of("torch", "empty", empty)(extents, nb::arg("dtype") = dtype);
  }
  std::size_t bytes = element_bytes(element);
  for (const std::int64_t extent : shape) bytes *= extent;
  const std::shared_ptr<std::byte[]> memory(new std::byte[bytes > 0 ? bytes : 1]);
  return make_array({.data = memory.get(), .shape = shape, .element = element, .pin = memory},
                    library);
}

}  // namespace ferry::python
