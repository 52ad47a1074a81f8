// aclTensor: a view of the caller's memory. Operands: dense memory for the views of one call, as
// ferry/cann.h takes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "ferry/aclnn.h"
#include "ferry/cann_parameters.h"

struct aclTensor {
  std::vector<std::int64_t> dims, strides;  // in elements
  aclDataType type = ACL_DT_UNDEFINED;
  std::byte* data = nullptr;

  std::int64_t elements() const;
};

namespace ferry::aclnn {

// A null tensor gives an empty result. The functions throw cann::internal::Refused.
class Operands {
 public:
  void need(const char* name, const aclTensor* tensor) const;

  template <typename T>
  cann::Matrix<const T> matrix(const char* name, const aclTensor* tensor, aclDataType type) {
    if (tensor == nullptr) return {};
    const Shape shape = shape_of(name, *tensor, {type});
    return {static_cast<const T*>(memory(*tensor, false)), shape.rows, shape.columns};
  }
  template <typename T>
  std::span<const T> vector(const char* name, const aclTensor* tensor, aclDataType type) {
    if (tensor == nullptr) return {};
    shape_of(name, *tensor, {type});
    return {static_cast<const T*>(memory(*tensor, false)),
            static_cast<std::size_t>(tensor->elements())};
  }
  template <typename T>
  std::span<T> out(const char* name, const aclTensor* tensor, aclDataType type) {
    if (tensor == nullptr) return {};
    shape_of(name, *tensor, {type});
    return {static_cast<T*>(memory(*tensor, true)), static_cast<std::size_t>(tensor->elements())};
  }
  // [rows, H]: all dimensions but the last one are rows.
  Rows rows(const char* name, const aclTensor* tensor);
  cann::RowsOut rows_out(const char* name, const aclTensor* tensor);

  // Copy the views that are not dense, before the operator runs and after it.
  void copy_in() const;
  void copy_out() const;

 private:
  struct Shape {
    std::int64_t rows = 0;
    std::int64_t columns = 1;
  };
  struct Staged {
    aclTensor view;
    std::unique_ptr<std::byte[]> dense;
    bool out;
  };

  static Shape shape_of(const char* name, const aclTensor& tensor,
                        std::initializer_list<aclDataType> types);
  void* memory(const aclTensor& tensor, bool out);

  std::vector<Staged> staged_;
};

}  // namespace ferry::aclnn
