#include "cann/configs.h"

#include "cann/call.h"
#include "cann/refusal.h"

namespace ferry::cann::internal {

namespace {

constexpr std::int64_t kGroupChannels = 128;  // channels that share a scale in quant_mode 3

Wire wire_of(std::int64_t quant_mode) {
  require_fit(
      quant_mode != 4 && quant_mode != 5,
      "quant_mode is {}: mx formats (an e8m0 scale per 32 channels) are not implemented; need 0 "
      "none, 1 static int8, 2 int8 per row or 3 fp8 per 128 channels",
      quant_mode);
  require_in("quant_mode", quant_mode, 0, 3);
  constexpr Wire kWires[] = {Wire::kNone, Wire::kInt8Static, Wire::kInt8, Wire::kFp8};
  return kWires[quant_mode];
}

CombineWire combine_wire_of(std::int64_t comm_quant_mode) {
  require_fit(
      comm_quant_mode != 3 && comm_quant_mode != 4,
      "comm_quant_mode is {}: mx formats are not implemented; need 0 none or 2 int8 per 8 elements",
      comm_quant_mode);
  require_value(comm_quant_mode == 0 || comm_quant_mode == 2, "comm_quant_mode is {}, need 0 or 2",
                comm_quant_mode);
  return comm_quant_mode == 2 ? CombineWire::kInt8Block8 : CombineWire::kNone;
}

// Elements of one byte, packed types included, travel unchanged.
DataType travelling_type(const DispatchArgs& args) {
  const DataType type = args.x.dtype;
  if (args.quant_mode != 0) {
    check_float_type("x, with quant_mode,", type);
    return type;
  }
  require_value(type <= DataType::kFp8E4m3, "x is of type {}, need one of DataType",
                static_cast<int>(type));
  return element_bytes(type) == 1 ? DataType::kBytes : type;
}

}  // namespace

std::int64_t scale_columns(const DispatchArgs& args) noexcept {
  switch (args.quant_mode) {
    case 0:  // without tokens, scales has a shape but no memory
      return args.scales.data || args.scales.columns > 1 ? args.scales.columns : 0;
    case 2: return 1;
    case 3: return (args.x.hidden + kGroupChannels - 1) / kGroupChannels;
    default: return 0;
  }
}

ExchangeConfig config_of(const DispatchArgs& args, const Place& place) {
  const Batch batch = batch_of(args);
  check_attributes(args.attributes, batch, place);
  ExchangeConfig config = exchange_config(args.attributes, batch);
  config.wire = wire_of(args.quant_mode);
  config.dtype = travelling_type(args);
  if (args.quant_mode == 0) {
    const std::int64_t columns = scale_columns(args);
    require_in("columns of scales", columns, 0, 1 << 20);
    config.scale_bytes = columns * static_cast<std::int64_t>(sizeof(float));
  }
  return config;
}

ExchangeConfig config_of(const CombineArgs& args, const Place& place) {
  const Batch batch = batch_of(args);
  check_attributes(args.attributes, batch, place);
  ExchangeConfig config = exchange_config(args.attributes, batch);
  config.combine_wire = combine_wire_of(args.comm_quant_mode);
  check_float_type("expand_x", args.expand_x.dtype);
  require_value(args.out_dtype == 0, "out_dtype is {}, need 0: the type is that of x_out",
                args.out_dtype);
  config.dtype = args.expand_x.dtype;
  return config;
}

}  // namespace ferry::cann::internal
