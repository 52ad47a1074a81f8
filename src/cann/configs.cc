#include "cann/configs.h"

#include "cann/call.h"
#include "cann/refusal.h"

namespace ferry::cann::internal {

namespace {

constexpr std::int64_t kGroupChannels = 128;  // of quant_mode 3

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

// Lines of "name is value". Values of 0 are omitted, so that the text fits into a record.
class TermsText {
 public:
  void add(const char* name, std::int64_t value) {
    if (value != 0) add(name, std::to_string(value));
  }
  void add(const char* name, std::string_view value) {
    if (!value.empty()) text_ += fmt::format("{} is {}\n", name, value);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

void add_common(const Attributes& a, const Batch& batch, TermsText& terms) {
  terms.add("global_bs", a.global_bs);
  if (a.global_bs == 0) terms.add("Bs", batch.bs);
  terms.add("H", batch.h);
  terms.add("K", batch.k);
  terms.add("moe_expert_num", a.moe_expert_num);
  if (tp_size_of(a) > 1) terms.add("tp_world_size", a.tp_world_size);
  terms.add("shared_expert_rank_num", a.shared_expert_rank_num);
  terms.add("shared_expert_num", num_shared(a));
  if (num_shared(a) > 0) terms.add("version", a.version == 1 ? "1" : "2 to 4");
  terms.add("zero_expert_num", a.zero_expert_num);
  terms.add("copy_expert_num", a.copy_expert_num);
  terms.add("const_expert_num", a.const_expert_num);
  terms.add("comm_alg", a.comm_alg);
}

}  // namespace

std::string terms_of(const DispatchArgs& args) {
  TermsText terms;
  terms.add("quant_mode", args.quant_mode);
  terms.add("type of x", data_type_name(args.x.dtype));
  add_common(args.attributes, batch_of(args), terms);
  return terms.take();
}

std::string terms_of(const CombineArgs& args) {
  TermsText terms;
  terms.add("comm_quant_mode", args.comm_quant_mode);
  terms.add("type of expand_x", data_type_name(args.expand_x.dtype));
  add_common(args.attributes, batch_of(args), terms);
  return terms.take();
}

std::string with_scales(const std::string& terms, std::int64_t scale_bytes) {
  if (scale_bytes <= 0) return terms;
  return fmt::format("{}columns of scales is {}\n", terms,
                     scale_bytes / static_cast<std::int64_t>(sizeof(float)));
}

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
  config.terms = terms_of(args);
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
  config.terms = terms_of(args);
  return config;
}

}  // namespace ferry::cann::internal
