#include "ferry/types.h"

namespace ferry {

std::size_t element_bytes(DataType type) noexcept {
  switch (type) {
    case DataType::kBf16:
    case DataType::kInt16:
    case DataType::kUint16:
    case DataType::kFp16: return 2;
    case DataType::kInt32:
    case DataType::kUint32:
    case DataType::kFp32: return 4;
    case DataType::kInt64:
    case DataType::kUint64:
    case DataType::kFp64: return 8;
    case DataType::kBytes:
    case DataType::kInt8:
    case DataType::kFp8E4m3: return 1;
  }
  return 0;
}

const char* data_type_name(DataType type) noexcept {
  switch (type) {
    case DataType::kBf16: return "bf16";
    case DataType::kFp16: return "fp16";
    case DataType::kFp32: return "fp32";
    case DataType::kBytes: return "bytes";
    case DataType::kInt8: return "int8";
    case DataType::kFp8E4m3: return "fp8_e4m3";
    case DataType::kFp64: return "fp64";
    case DataType::kInt16: return "int16";
    case DataType::kInt32: return "int32";
    case DataType::kInt64: return "int64";
    case DataType::kUint16: return "uint16";
    case DataType::kUint32: return "uint32";
    case DataType::kUint64: return "uint64";
  }
  return "unknown";
}

const char* reduce_op_name(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::kSum: return "sum";
    case ReduceOp::kAvg: return "avg";
    case ReduceOp::kProduct: return "product";
    case ReduceOp::kMin: return "min";
    case ReduceOp::kMax: return "max";
    case ReduceOp::kBand: return "band";
    case ReduceOp::kBor: return "bor";
    case ReduceOp::kBxor: return "bxor";
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

const char* wire_name(Wire wire) noexcept {
  switch (wire) {
    case Wire::kNone: return "none";
    case Wire::kInt8: return "int8";
    case Wire::kInt8Static: return "int8_static";
    case Wire::kFp8: return "fp8";
    case Wire::kFp8Pow2: return "fp8_pow2";
    case Wire::kFp8Ue8m0: return "fp8_ue8m0";
  }
  return "unknown";
}

const char* wire_name(CombineWire wire) noexcept {
  switch (wire) {
    case CombineWire::kNone: return "none";
    case CombineWire::kInt8Block8: return "int8_8";
    case CombineWire::kInt8Block128: return "int8_128";
    case CombineWire::kLogfmt10: return "logfmt10";
  }
  return "unknown";
}

}  // namespace ferry
