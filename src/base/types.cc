#include "ferry/types.h"

namespace ferry {

std::size_t element_bytes(DataType type) noexcept {
  switch (type) {
    case DataType::kBf16:
    case DataType::kFp16: return 2;
    case DataType::kFp32: return 4;
    case DataType::kBytes: return 1;
  }
  return 0;
}

const char* data_type_name(DataType type) noexcept {
  switch (type) {
    case DataType::kBf16: return "bf16";
    case DataType::kFp16: return "fp16";
    case DataType::kFp32: return "fp32";
    case DataType::kBytes: return "bytes";
  }
  return "unknown";
}

const char* layout_name(Layout layout) noexcept {
  switch (layout) {
    case Layout::kRankMajor: return "rank_major";
    case Layout::kExpertMajor: return "expert_major";
    case Layout::kPadded: return "padded";
  }
  return "unknown";
}

}  // namespace ferry
