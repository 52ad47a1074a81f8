// to_float and from_float: one element of any type, as the oracle and the tests read and write it.
#include "kernels/float_formats.h"

#include <cstring>

#include "kernels/kernels.h"

namespace ferry::internal {

float to_float(const void* element, DataType type) noexcept {
  if (type == DataType::kFp32) {
    float value;
    std::memcpy(&value, element, sizeof value);
    return value;
  }
  std::uint16_t half;
  std::memcpy(&half, element, sizeof half);
  return type == DataType::kBf16 ? bf16_to_float(half) : fp16_to_float(half);
}

void from_float(float value, void* element, DataType type) noexcept {
  if (type == DataType::kFp32) {
    std::memcpy(element, &value, sizeof value);
    return;
  }
  const std::uint16_t half = type == DataType::kBf16 ? float_to_bf16(value) : float_to_fp16(value);
  std::memcpy(element, &half, sizeof half);
}

}  // namespace ferry::internal
