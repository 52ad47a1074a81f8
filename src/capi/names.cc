// The version of this library, and the names and sizes that need no object.
#include "capi/boundary.h"
#include "ferry/ferry.h"
#include "ferry/status.h"
#include "ferry/types.h"

using ferry::capi::enum_of;

const char* ferry_version(void) { return FERRY_VERSION; }
uint32_t ferry_abi_version(void) { return FERRY_ABI_VERSION; }

const char* ferry_code_name(int32_t code) { return ferry::code_name(enum_of<ferry::Code>(code)); }
const char* ferry_data_type_name(int32_t data_type) {
  return ferry::data_type_name(enum_of<ferry::DataType>(data_type));
}
const char* ferry_layout_name(int32_t layout) {
  return ferry::layout_name(enum_of<ferry::Layout>(layout));
}
const char* ferry_wire_name(int32_t wire) { return ferry::wire_name(enum_of<ferry::Wire>(wire)); }
const char* ferry_combine_wire_name(int32_t combine_wire) {
  return ferry::wire_name(enum_of<ferry::CombineWire>(combine_wire));
}
const char* ferry_reduce_op_name(int32_t reduce_op) {
  return ferry::reduce_op_name(enum_of<ferry::ReduceOp>(reduce_op));
}

int32_t ferry_code_group_usable(int32_t code) {
  return ferry::Status(enum_of<ferry::Code>(code), {}).group_usable();
}
size_t ferry_element_bytes(int32_t data_type) {
  return ferry::element_bytes(enum_of<ferry::DataType>(data_type));
}
