#include "core/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "core/dlpack.h"
#include "core/forked.h"
#include "ferry/status.h"

namespace ferry::python {

namespace {

struct ElementInfo {
  Element element;
  const char* name;  // as torch, numpy and ml_dtypes write it
  nb::dlpack::dtype_code code;
  std::uint8_t bits;
};
using Dlpack = nb::dlpack::dtype_code;
constexpr ElementInfo kElements[] = {
    {Element::kBf16, "bfloat16", Dlpack::Bfloat, 16},
    {Element::kFp16, "float16", Dlpack::Float, 16},
    {Element::kFp32, "float32", Dlpack::Float, 32},
    {Element::kFp64, "float64", Dlpack::Float, 64},
    {Element::kInt8, "int8", Dlpack::Int, 8},
    {Element::kUint8, "uint8", Dlpack::UInt, 8},
    {Element::kInt32, "int32", Dlpack::Int, 32},
    {Element::kInt64, "int64", Dlpack::Int, 64},
    {Element::kBool, "bool", Dlpack::Bool, 8},
    {Element::kFp8E4m3, "float8_e4m3fn", Dlpack::Float8_E4M3FN, 8},
};

const ElementInfo* find_element(Element element) noexcept {
  for (const ElementInfo& info : kElements) {
    if (info.element == element) return &info;
  }
  return nullptr;
}

Element element_named(std::string_view name) noexcept {
  for (const ElementInfo& info : kElements) {
    if (name == info.name) return info.element;
  }
  return Element::kOther;
}

Element element_of(nb::dlpack::dtype dtype) noexcept {
  for (const ElementInfo& info : kElements) {
    if (dtype.code == static_cast<std::uint8_t>(info.code) && dtype.bits == info.bits &&
        dtype.lanes == 1) {
      return info.element;
    }
  }
  return Element::kOther;
}

// A module that is already imported, or none: nobody who does not use a library has it loaded.
nb::object imported(const char* name) {
  nb::object modules = nb::module_::import_("sys").attr("modules");
  return modules.attr("get")(name, nb::none());
}

// The attribute `name` of a module that is imported; looked up again until it is there.
nb::handle attribute_of(const char* module, const char* name, nb::handle& cached) {
  if (cached.is_valid()) return cached;
  const nb::object found = imported(module);
  if (!found.is_none() && nb::hasattr(found, name)) {
    cached = nb::object(found.attr(name)).release();  // kept as long as the process
  }
  return cached;
}

bool is_instance(nb::handle object, nb::handle type) {
  return type.is_valid() &&
         PyObject_TypeCheck(object.ptr(), reinterpret_cast<PyTypeObject*>(type.ptr()));
}

nb::handle torch_tensor_type() {
  static nb::handle type;
  return attribute_of("torch", "Tensor", type);
}

// Null without torch, or with one that has no such table.
const ExchangeTable* torch_table() {
  static const ExchangeTable* table = nullptr;
  static bool looked = false;
  if (!looked && torch_tensor_type().is_valid()) {
    table = exchange_table(torch_tensor_type());
    looked = true;
  }
  return table;
}

[[noreturn]] void refuse(const std::string& text) { throw Error(Code::kInvalidArgument, text); }

std::string class_of(nb::handle object) {
  return nb::cast<std::string>(nb::str(object.type().attr("__name__")));
}

// numpy arrays of ml_dtypes' types cannot be exported; the same bytes under an integer type can.
nb::object without_ml_dtypes(nb::handle object, Element& element) {
  if (library_of(object) != Library::kNumpy) return nb::borrow(object);
  const auto name = nb::cast<std::string>(nb::str(nb::object(object.attr("dtype").attr("name"))));
  const Element named = element_named(name);
  if (named != Element::kBf16 && named != Element::kFp8E4m3) return nb::borrow(object);
  element = named;
  return object.attr("view")(named == Element::kBf16 ? "uint16" : "uint8");
}

[[noreturn]] void refuse_unreadable(nb::handle object, const char* name, bool writable) {
  if (nb::hasattr(object, "device")) {
    const auto device = nb::cast<std::string>(nb::str(nb::object(object.attr("device"))));
    if (device != "cpu") refuse(fmt::format("{} is on device {}, need cpu", name, device));
  }
  refuse(fmt::format("{} is a {}: need a{} array with DLPack or the buffer protocol, on the CPU",
                     name, class_of(object), writable ? " writable" : "n"));
}

// A gradient would end here unseen.
void refuse_gradient(nb::handle object, const char* name) {
  if (!PyObject_IsTrue(nb::object(object.attr("requires_grad")).ptr())) return;
  if (!PyObject_IsTrue(imported("torch").attr("is_grad_enabled")().ptr())) return;
  refuse(fmt::format("{} requires a gradient: give {}.detach(), or use ferry.torch", name, name));
}

bool take(const nb::dlpack::dltensor& from, Tensor& tensor) {
  if (from.device.device_type != nb::device::cpu::value) return false;
  tensor.data = static_cast<std::byte*>(from.data) + from.byte_offset;
  tensor.shape.assign(from.shape, from.shape + from.ndim);
  if (from.strides) tensor.strides.assign(from.strides, from.strides + from.ndim);
  if (tensor.element == Element::kOther) tensor.element = element_of(from.dtype);
  return true;
}

// A tensor of torch, by its table.
bool import_by_table(nb::handle object, const ExchangeTable& table, Tensor& tensor) {
  nb::dlpack::dltensor from;
  if (table.view_of_object(object.ptr(), &from) != 0) {
    PyErr_Clear();  // said by refuse_unreadable, with the argument's name
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
  // The ndarray keeps what it was made of; the capsule keeps the ndarray.
  tensor.owner = nb::capsule(new Array(std::move(array)),
                             [](void* kept) noexcept { delete static_cast<Array*>(kept); });
  return take(from, tensor);
}

bool import_any(nb::handle object, bool writable, Tensor& tensor) {
  return writable ? import_array<nb::ndarray<>>(object, tensor)
                  : import_array<nb::ndarray<nb::ro>>(object, tensor);
}

// What a new tensor of torch is made of: the pin, and the shape that DLPack points to.
struct Exported {
  Exported(std::shared_ptr<const void> memory, const View& view)
      : pin(std::move(memory)),
        shape(view.shape.begin(), view.shape.end()),
        strides(view.strides) {}

  Kept<std::shared_ptr<const void>> pin;
  std::vector<std::int64_t> shape, strides;
  ManagedTensor managed = {};
};

nb::object make_by_table(const View& view, nb::dlpack::dtype dtype, const ExchangeTable& table) {
  auto exported = std::make_unique<Exported>(view.pin, view);
  if (exported->strides.empty()) {
    exported->strides.resize(view.shape.size());
    std::int64_t stride = 1;
    for (std::size_t i = view.shape.size(); i-- > 0; stride *= exported->shape[i])
      exported->strides[i] = stride;
  }
  exported->managed.context = exported.get();
  exported->managed.deleter = [](ManagedTensor* managed) {
    delete static_cast<Exported*>(managed->context);
  };
  exported->managed.tensor = {.data = const_cast<void*>(view.data),
                              .device = {nb::device::cpu::value, 0},
                              .ndim = static_cast<std::int32_t>(view.shape.size()),
                              .dtype = dtype,
                              .shape = exported->shape.data(),
                              .strides = exported->strides.data()};
  void* object = nullptr;
  if (table.object_from_managed(&exported.release()->managed, &object) != 0)
    throw nb::python_error();
  return nb::steal(static_cast<PyObject*>(object));
}

}  // namespace

Library library_of(nb::handle tensor) {
  static nb::handle numpy_array;
  if (is_instance(tensor, torch_tensor_type())) return Library::kTorch;
  if (is_instance(tensor, attribute_of("numpy", "ndarray", numpy_array))) return Library::kNumpy;
  return Library::kNone;
}

const char* element_name(Element element) noexcept {
  const ElementInfo* info = find_element(element);
  return info ? info->name : "another type";
}

std::size_t element_bytes(Element element) noexcept {
  const ElementInfo* info = find_element(element);
  return info ? info->bits / 8 : 0;
}

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

Tensor read_tensor(nb::handle object, const char* name, bool writable) {
  Tensor tensor;
  if (object.is_none()) return tensor;
  if (library_of(object) == Library::kTorch) {
    refuse_gradient(object, name);
    if (torch_table() && import_by_table(object, *torch_table(), tensor)) return tensor;
  }
  if (import_any(object, writable, tensor)) return tensor;
  const nb::object plain = without_ml_dtypes(object, tensor.element);
  if (plain.is(object) || !import_any(plain, writable, tensor))
    refuse_unreadable(object, name, writable);
  return tensor;
}

void check_shape(const Tensor& tensor, const char* name, const std::vector<std::int64_t>& shape) {
  bool same = tensor.shape.size() == shape.size();
  for (std::size_t i = 0; same && i < shape.size(); ++i) {
    same = shape[i] < 0 || shape[i] == tensor.shape[i];
  }
  if (same) return;
  std::vector<std::string> wanted;
  for (const std::int64_t extent : shape) {
    wanted.push_back(extent < 0 ? "any" : std::to_string(extent));
  }
  refuse(
      fmt::format("{} is {}, need shape [{}]", name, tensor.describe(), fmt::join(wanted, ", ")));
}

Tensor read_dense(nb::handle object, const Expected& expected) {
  Tensor tensor = read_tensor(object, expected.name, expected.writable);
  if (!tensor.given()) return tensor;
  if (std::find(expected.elements.begin(), expected.elements.end(), tensor.element) ==
      expected.elements.end()) {
    std::vector<const char*> names;
    for (const Element element : expected.elements) names.push_back(element_name(element));
    refuse(fmt::format("{} is {}, need {}", expected.name, tensor.describe(),
                       fmt::join(names, " or ")));
  }
  check_shape(tensor, expected.name, expected.shape);
  if (!tensor.dense()) {
    refuse(fmt::format("{} ({}) has strides [{}]: need a contiguous array", expected.name,
                       tensor.describe(), fmt::join(tensor.strides, ", ")));
  }
  return tensor;
}

DataType data_type(const Tensor& tensor, const char* name) {
  switch (tensor.element) {
    case Element::kBf16: return DataType::kBf16;
    case Element::kFp16: return DataType::kFp16;
    case Element::kFp32: return DataType::kFp32;
    case Element::kUint8: return DataType::kBytes;
    case Element::kInt8: return DataType::kInt8;
    case Element::kFp8E4m3: return DataType::kFp8E4m3;
    default:
      refuse(fmt::format("{} is {}, need bfloat16, float16, float32, uint8, int8 or float8_e4m3fn",
                         name, tensor.describe()));
  }
}

Element element_of(DataType type) noexcept {
  switch (type) {
    case DataType::kBf16: return Element::kBf16;
    case DataType::kFp16: return Element::kFp16;
    case DataType::kFp32: return Element::kFp32;
    case DataType::kBytes: return Element::kUint8;
    case DataType::kInt8: return Element::kInt8;
    case DataType::kFp8E4m3: return Element::kFp8E4m3;
  }
  return Element::kOther;
}

Element element_from_object(nb::handle dtype) {
  nb::object name = nb::borrow(dtype);
  if (!nb::isinstance<nb::str>(dtype)) {
    name = nb::getattr(dtype, "name", nb::getattr(dtype, "__name__", nb::str(dtype)));
  }
  auto text = nb::cast<std::string>(nb::str(name));
  if (text.rfind("torch.", 0) == 0) text = text.substr(6);
  const Element element = element_named(text);
  if (element == Element::kOther)
    refuse(fmt::format("dtype \"{}\" is not one that ferry knows", text));
  return element;
}

nb::object make_array(const View& view, Library library) {
  const ElementInfo& info = *find_element(view.element);
  // What a library cannot import goes in as bytes or halves of the same width.
  const bool foreign = view.element == Element::kFp8E4m3 ||
                       (view.element == Element::kBf16 && library != Library::kTorch);
  nb::dlpack::dtype dtype{static_cast<std::uint8_t>(info.code), info.bits, 1};
  if (foreign) dtype.code = static_cast<std::uint8_t>(Dlpack::UInt);
  if (library == Library::kTorch && !foreign && torch_table())
    return make_by_table(view, dtype, *torch_table());
  const nb::capsule owner(new Kept<std::shared_ptr<const void>>(view.pin), [](void* pin) noexcept {
    delete static_cast<Kept<std::shared_ptr<const void>>*>(pin);
  });
  void* data = const_cast<void*>(view.data);
  const std::int64_t* strides = view.strides.empty() ? nullptr : view.strides.data();
  const auto as = [&](auto framework) {
    return nb::cast(nb::ndarray<decltype(framework)>(data, view.shape.size(), view.shape.data(),
                                                     owner, strides, dtype, nb::device::cpu::value,
                                                     0, 'C'));
  };
  if (library == Library::kNone) return as(nb::memview());
  nb::object array = library == Library::kTorch ? as(nb::pytorch()) : as(nb::numpy());
  if (!foreign) return array;
  // bf16 and fp8 by torch or ml_dtypes where they have them, plain integers where not.
  const nb::object types = imported(library == Library::kTorch ? "torch" : "ml_dtypes");
  if (types.is_none() || !nb::hasattr(types, info.name)) return array;
  return array.attr("view")(types.attr(info.name));
}

nb::object new_array(const std::vector<std::int64_t>& shape, Element element, Library library) {
  const ElementInfo& info = *find_element(element);
  if (library == Library::kTorch) {
    static nb::handle empty, dtypes[std::size(kElements)];
    nb::handle& dtype = dtypes[&info - kElements];
    attribute_of("torch", info.name, dtype);
    if (!dtype.is_valid()) attribute_of("torch", "uint8", dtype);  // an older torch has no fp8
    return attribute_of("torch", "empty", empty)(nb::cast(shape), nb::arg("dtype") = dtype);
  }
  std::vector<std::size_t> extents(shape.begin(), shape.end());
  std::size_t bytes = info.bits / 8;
  for (const std::size_t extent : extents) bytes *= extent;
  const std::shared_ptr<std::byte[]> memory(new std::byte[bytes > 0 ? bytes : 1]);
  return make_array(
      {.data = memory.get(), .shape = std::move(extents), .element = element, .pin = memory},
      library);
}

}  // namespace ferry::python
