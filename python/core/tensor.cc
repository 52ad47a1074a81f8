#include "core/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nanobind/stl/string.h>

#include <string>
#include <vector>

#include "core/errors.h"
#include "core/libraries.h"

namespace ferry::python {

namespace {

std::string class_of(nb::handle object) {
  return nb::cast<std::string>(nb::str(object.type().attr("__name__")));
}

// A view of integers of the same width, for an element type that a library has but does not export:
// bf16 and fp8 of ml_dtypes, fp8 of torch, and bool of a torch before 2.0. Other arrays are
// returned unchanged.
nb::object as_integers(nb::handle object, Element& element) {
  const Library library = library_of(object);
  if (library == Library::kNone) return nb::borrow(object);
  const Element named = element_named(nb::object(object.attr("dtype")));
  if (named != Element::kBf16 && named != Element::kFp8E4m3 && named != Element::kBool)
    return nb::borrow(object);
  element = named;
  const char* integers = named == Element::kBf16 ? "int16" : "uint8";
  if (library == Library::kNumpy) return object.attr("view")(integers);
  return object.attr("view")(imported("torch").attr(integers));
}

[[noreturn]] void refuse_unreadable(nb::handle object, const char* name, bool writable) {
  if (nb::hasattr(object, "device")) {
    const auto device = nb::cast<std::string>(nb::str(nb::object(object.attr("device"))));
    if (device != "cpu") refuse("{} is on device {}, need cpu", name, device);
  }
  refuse("{} is a {}: need a{} array with DLPack or the buffer protocol, on the CPU", name,
         class_of(object), writable ? " writable" : "n");
}

bool is_true(const nb::object& object) { return PyObject_IsTrue(object.ptr()) == 1; }

// Whether the elements are of a type that has neither gradients nor lazy negation.
bool is_whole(Element element) {
  return element == Element::kInt64 || element == Element::kInt32 || element == Element::kBool ||
         element == Element::kUint8 || element == Element::kInt8 || element == Element::kInt16;
}

// Refuses a tensor that needs a gradient, which would end here without an error, and a lazily
// negated one, whose elements in memory have the wrong sign.
void refuse_laziness(nb::handle object, const char* name) {
  if (is_true(object.attr("is_neg")()))
    refuse("{} is a negated view: give {}.resolve_neg()", name, name);
  if (!is_true(object.attr("requires_grad"))) return;
  if (!is_true(imported("torch").attr("is_grad_enabled")())) return;
  refuse("{} requires a gradient: give {}.detach(), or use ferry.torch", name, name);
}

// Waits for the result of a functional collective of torch, which has no elements before.
nb::object waited_for(nb::handle object) {
  if (is_plain_tensor(object) || !nb::hasattr(object, "trigger_wait")) return nb::borrow(object);
  return object.attr("trigger_wait")();
}

// Whether elements lie at the address of a tensor. The address of a tensor without memory may be an
// offset, because torch adds the offset to a null address. So for a low address the storage is
// examined. Linux maps no memory below kLowest.
bool has_memory(nb::handle object, const Tensor& tensor) {
  constexpr std::uintptr_t kLowest = 4096, kSuspect = std::uintptr_t{1} << 40;
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.data);
  if (tensor.size() == 0 || address >= kSuspect) return true;
  if (address < kLowest) return false;
  if (!nb::hasattr(object, "untyped_storage")) return true;
  try {
    return nb::cast<std::uintptr_t>(object.attr("untyped_storage")().attr("data_ptr")()) != 0;
  } catch (const nb::python_error&) {
    return false;  // a tensor without values raises
  }
}

// Refuses a DTensor, a fake tensor or another wrapper that has only a shape and a type. Its null
// address would otherwise stand for an optional argument that is not given.
void refuse_without_memory(nb::handle object, const Tensor& tensor, const char* name) {
  if (!tensor.given() || has_memory(object, tensor)) return;
  const bool local = nb::hasattr(object, "to_local");
  refuse("{} is a {} of shape [{}] without memory of its own: give {}", name, class_of(object),
         fmt::join(tensor.shape, ", "),
         local ? fmt::format("its local tensor, {}.to_local()", name)
               : "the tensor that has its elements");
}

// An empty tensor of torch is at a null address, which elsewhere means that an argument is not
// given.
void take_place(const nb::dlpack::dltensor& from, Tensor& tensor) {
  static std::byte no_elements;
  tensor.data = static_cast<std::byte*>(from.data) + from.byte_offset;
  const auto dims = static_cast<std::size_t>(from.ndim);
  tensor.shape = {from.shape, dims};
  tensor.strides = {from.strides, dims};
  if (tensor.size() == 0) tensor.data = &no_elements;
}

bool take(const nb::dlpack::dltensor& from, Tensor& tensor) {
  if (from.device.device_type != nb::device::cpu::value) return false;
  take_place(from, tensor);
  tensor.item_bytes = (from.dtype.bits * from.dtype.lanes + 7) / 8;
  if (tensor.element == Element::kOther) tensor.element = element_of(from.dtype);
  return true;
}

// Reads a tensor of torch by the table of torch.
bool import_by_table(nb::handle object, const ExchangeTable& table, Tensor& tensor) {
  nb::dlpack::dltensor from;
  if (table.view_of_object(object.ptr(), &from) != 0) {
    PyErr_Clear();  // refuse_unreadable raises an error with the name of the argument
    return false;
  }
  tensor.owner = nb::borrow(object);
  return take(from, tensor);
}

template <typename Array>
bool import_array(nb::handle object, Tensor& tensor) {
  Array array;
  if (!nb::try_cast(object, array)) return false;
  nb::dlpack::dltensor from{.data = const_cast<void*>(array.data_handle()),
                            .device = {array.device_type(), array.device_id()},
                            .ndim = static_cast<std::int32_t>(array.ndim()),
                            .dtype = array.dtype(),
                            .shape = const_cast<std::int64_t*>(array.shape_ptr()),
                            .strides = const_cast<std::int64_t*>(array.stride_ptr()),
                            .byte_offset = array.byte_offset()};
  // The ndarray keeps the array alive, and the capsule keeps the ndarray.
  tensor.owner = nb::capsule(new Array(std::move(array)),
                             [](void* kept) noexcept { delete static_cast<Array*>(kept); });
  return take(from, tensor);
}

bool import_any(nb::handle object, bool writable, Tensor& tensor) {
  return writable ? import_array<nb::ndarray<>>(object, tensor)
                  : import_array<nb::ndarray<nb::ro>>(object, tensor);
}

Tensor import_tensor(nb::handle object, bool of_torch, const char* name, bool writable) {
  Tensor tensor;
  if (of_torch) {
    const bool read = torch_table() && import_by_table(object, *torch_table(), tensor);
    if (!read || !is_whole(tensor.element)) refuse_laziness(object, name);
    if (read) return tensor;
  }
  if (import_any(object, writable, tensor)) return tensor;
  const nb::object plain = as_integers(object, tensor.element);
  if (plain.is(object) || !import_any(plain, writable, tensor))
    refuse_unreadable(object, name, writable);
  return tensor;
}

}  // namespace

std::int64_t Tensor::size() const noexcept {
  std::int64_t size = 1;
  for (const std::int64_t extent : shape) size *= extent;
  return size;
}

bool Tensor::dense() const noexcept {
  if (size() == 0) return true;
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && strides[i] != stride) return false;
    stride *= shape[i];
  }
  return true;
}

std::string Tensor::describe() const {
  return fmt::format("{} [{}]", element_name(element), fmt::join(shape, ", "));
}

Tensor read_tensor(nb::handle given, const char* name, bool writable) {
  if (given.is_none()) return {};
  const bool of_torch = library_of(given) == Library::kTorch;
  const nb::object object = of_torch ? waited_for(given) : nb::borrow(given);
  Tensor tensor = import_tensor(object, of_torch, name, writable);
  refuse_without_memory(object, tensor, name);
  return tensor;
}

nb::object with_memory(nb::handle given, const char* name) {
  if (library_of(given) != Library::kTorch) return nb::borrow(given);
  nb::object object = waited_for(given);
  nb::dlpack::dltensor from;
  if (torch_table() && torch_table()->view_of_object(object.ptr(), &from) == 0) {
    Tensor tensor;
    tensor.owner = object;
    take_place(from, tensor);
    refuse_without_memory(object, tensor, name);
  }
  PyErr_Clear();  // other checks raise a better error
  return object;
}

void check_shape(const Tensor& tensor, const char* name, const Shape& shape) {
  bool same = tensor.shape.size() == shape.size();
  for (std::size_t i = 0; same && i < shape.size(); ++i) {
    same = shape[i] < 0 || shape[i] == tensor.shape[i];
  }
  if (same) return;
  std::vector<std::string> wanted;
  for (const std::int64_t extent : shape) {
    wanted.push_back(extent < 0 ? "any" : std::to_string(extent));
  }
  refuse("{} is {}, need shape [{}]", name, tensor.describe(), fmt::join(wanted, ", "));
}

Tensor read_dense(nb::handle object, const Expected& expected) {
  Tensor tensor = read_tensor(object, expected.name, expected.writable);
  if (!tensor.given()) return tensor;
  const auto [first, second] = expected.elements;
  if (tensor.element == Element::kUint16 && (first == Element::kBf16 || second == Element::kBf16))
    tensor.element = Element::kBf16;
  if (tensor.element == Element::kOther || (tensor.element != first && tensor.element != second))
    refuse("{} is {}, need {}{}{}", expected.name, tensor.describe(), element_name(first),
           second == Element::kOther ? "" : " or ",
           second == Element::kOther ? "" : element_name(second));
  check_shape(tensor, expected.name, expected.shape);
  if (!tensor.dense())
    refuse("{} ({}) has strides [{}]: need a contiguous array", expected.name, tensor.describe(),
           fmt::join(tensor.strides, ", "));
  return tensor;
}

DataType data_type(const Tensor& tensor, const char* name) {
  switch (tensor.element) {
    case Element::kBf16: return DataType::kBf16;
    case Element::kFp16: return DataType::kFp16;
    case Element::kFp32: return DataType::kFp32;
    case Element::kUint8: return DataType::kBytes;
    case Element::kUint16: return DataType::kBf16;
    case Element::kInt8: return DataType::kInt8;
    case Element::kFp8E4m3: return DataType::kFp8E4m3;
    default:
      refuse("{} is {}, need bfloat16, float16, float32, uint8, int8 or float8_e4m3fn", name,
             tensor.describe());
  }
}

}  // namespace ferry::python
