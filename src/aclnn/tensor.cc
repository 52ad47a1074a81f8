#include "aclnn/tensor.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "aclnn/runtime.h"
#include "base/check.h"
#include "cann/refusal.h"

namespace ferry::aclnn {

namespace {

using cann::internal::require_fit;
using cann::internal::require_value;

std::size_t bytes_of(aclDataType type) {
  switch (type) {
    case ACL_FLOAT:
    case ACL_INT32:
    case ACL_UINT32: return 4;
    case ACL_INT64:
    case ACL_UINT64:
    case ACL_DOUBLE: return 8;
    case ACL_FLOAT16:
    case ACL_BF16:
    case ACL_INT16:
    case ACL_UINT16: return 2;
    default: return 1;
  }
}

struct RowType {
  DataType type;
  std::int64_t per_element;  // elements of ferry for one of CANN
};

// The type in which rows of `type` travel; packed types travel as bytes.
RowType row_type(const char* name, aclDataType type) {
  switch (type) {
    case ACL_BF16: return {DataType::kBf16, 1};
    case ACL_FLOAT16: return {DataType::kFp16, 1};
    case ACL_FLOAT: return {DataType::kFp32, 1};
    case ACL_INT8: return {DataType::kInt8, 1};
    case ACL_FLOAT8_E4M3FN: return {DataType::kFp8E4m3, 1};
    case ACL_UINT8:
    case ACL_HIFLOAT8:
    case ACL_FLOAT8_E5M2: return {DataType::kBytes, 1};
    case ACL_INT32: return {DataType::kBytes, 4};
    default: require_value(false, "{} is of aclDataType {}", name, static_cast<int>(type));
  }
  return {};
}

std::vector<std::int64_t> dense_strides(const std::vector<std::int64_t>& dims) {
  std::vector<std::int64_t> strides(dims.size(), 1);
  for (std::size_t i = dims.size(); i > 1; --i) strides[i - 2] = strides[i - 1] * dims[i - 1];
  return strides;
}

bool is_dense(const aclTensor& tensor) {
  FERRY_CHECK(tensor.strides.size(), ==, tensor.dims.size());
  const std::vector<std::int64_t> dense = dense_strides(tensor.dims);
  for (std::size_t i = 0; i < dense.size(); ++i) {
    if (tensor.dims[i] > 1 && tensor.strides[i] != dense[i]) return false;
  }
  return true;
}

// Calls visit(element of the view, index) in the order of dense memory.
void for_each_element(const aclTensor& view,
                      const std::function<void(std::byte*, std::int64_t)>& visit) {
  const std::vector<std::int64_t> dense = dense_strides(view.dims);
  for (std::int64_t i = 0; i < view.elements(); ++i) {
    std::int64_t at = 0, rest = i;
    for (std::size_t d = 0; d < dense.size(); ++d) {
      at += rest / dense[d] * view.strides[d];
      rest %= dense[d];
    }
    visit(view.data + at * static_cast<std::int64_t>(bytes_of(view.type)), i);
  }
}

}  // namespace

void Operands::need(const char* name, const aclTensor* tensor) const {
  cann::internal::require(tensor != nullptr, cann::StatusCode::kNullPointer, "{} is null", name);
}

Operands::Shape Operands::shape_of(const char* name, const aclTensor& tensor,
                                   std::initializer_list<aclDataType> types) {
  const bool known = types.size() == 0 || std::ranges::count(types, tensor.type) > 0 ||
                     (*types.begin() == ACL_BOOL && bytes_of(tensor.type) == 1);
  require_value(known, "{} is of aclDataType {}, need {}", name, static_cast<int>(tensor.type),
                types.size() ? static_cast<int>(*types.begin()) : 0);
  require_fit(!tensor.dims.empty() && tensor.dims.size() <= 3, "{} has {} dimensions, need 1 to 3",
              name, tensor.dims.size());
  if (tensor.dims.size() == 1) return {tensor.dims[0], 1};
  const std::int64_t columns = tensor.dims.back();
  return {columns > 0 ? tensor.elements() / columns : tensor.dims[0], columns};
}

void* Operands::memory(const aclTensor& tensor, bool out) {
  if (is_dense(tensor)) return tensor.data;
  const std::size_t bytes = tensor.elements() * bytes_of(tensor.type);
  staged_.push_back({tensor, std::make_unique<std::byte[]>(bytes), out});
  return staged_.back().dense.get();
}

Rows Operands::rows(const char* name, const aclTensor* tensor) {
  if (tensor == nullptr) return {};
  Shape shape = shape_of(name, *tensor, {});
  if (tensor->dims.size() == 1) shape = {1, tensor->dims[0]};  // gamma
  const auto [type, elements] = row_type(name, tensor->type);
  return {memory(*tensor, false), shape.rows, shape.columns * elements, type};
}

cann::RowsOut Operands::rows_out(const char* name, const aclTensor* tensor) {
  if (tensor == nullptr) return {};
  const Shape shape = shape_of(name, *tensor, {});
  const auto [type, elements] = row_type(name, tensor->type);
  return {memory(*tensor, true), shape.rows, shape.columns * elements, type};
}

// Copies the inputs, and the outputs too, so that elements that the operator does not write keep
// their values.
void Operands::copy_in() const {
  for (const Staged& staged : staged_) {
    const std::size_t bytes = bytes_of(staged.view.type);
    for_each_element(staged.view, [&](const std::byte* element, std::int64_t i) {
      std::memcpy(staged.dense.get() + i * bytes, element, bytes);
    });
  }
}

void Operands::copy_out() const {
  for (const Staged& staged : staged_) {
    if (!staged.out) continue;
    const std::size_t bytes = bytes_of(staged.view.type);
    for_each_element(staged.view, [&](std::byte* element, std::int64_t i) {
      std::memcpy(element, staged.dense.get() + i * bytes, bytes);
    });
  }
}

}  // namespace ferry::aclnn

std::int64_t aclTensor::elements() const {
  return std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>());
}

extern "C" {

// NOLINTNEXTLINE(readability-function-size): the parameters are CANN's
aclTensor* aclCreateTensor(const int64_t* dims, uint64_t num_dims, aclDataType type,
                           const int64_t* strides, int64_t offset, aclFormat, const int64_t*,
                           uint64_t, void* data) {
  if (dims == nullptr && num_dims > 0) return nullptr;
  auto* tensor = new aclTensor{.dims = {dims, dims + num_dims}, .strides = {}, .type = type};
  tensor->strides = strides ? std::vector<std::int64_t>(strides, strides + num_dims)
                            : ferry::aclnn::dense_strides(tensor->dims);
  const auto bytes = static_cast<std::int64_t>(ferry::aclnn::bytes_of(type));
  tensor->data = data ? static_cast<std::byte*>(data) + offset * bytes : nullptr;
  return tensor;
}
aclnnStatus aclDestroyTensor(const aclTensor* tensor) {
  delete tensor;
  return ACLNN_SUCCESS;
}

}  // extern "C"
