// The operators of ferry/cann.h for Python: they take arguments by name and return new tensors.
// ferry.torch_npu has their signatures, their defaults, and the groups by name.
#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>

#include "base/check.h"
#include "core/arrays.h"
#include "core/bindings.h"
#include "core/errors.h"
#include "core/given.h"
#include "core/group.h"
#include "core/tensor.h"
#include "ferry/cann.h"

namespace ferry::python {

using nb::arg;

namespace {

using cann::Attributes;
using cann::Matrix;

struct AttributeName {
  const char* name;
  std::int64_t Attributes::*value;
};
constexpr AttributeName kAttributes[] = {
    {"ep_world_size", &Attributes::ep_world_size},
    {"ep_rank_id", &Attributes::ep_rank_id},
    {"moe_expert_num", &Attributes::moe_expert_num},
    {"tp_world_size", &Attributes::tp_world_size},
    {"tp_rank_id", &Attributes::tp_rank_id},
    {"expert_shard_type", &Attributes::expert_shard_type},
    {"shared_expert_num", &Attributes::shared_expert_num},
    {"shared_expert_rank_num", &Attributes::shared_expert_rank_num},
    {"global_bs", &Attributes::global_bs},
    {"zero_expert_num", &Attributes::zero_expert_num},
    {"copy_expert_num", &Attributes::copy_expert_num},
    {"const_expert_num", &Attributes::const_expert_num},
};

Attributes read_attributes(const Given& given) {
  Attributes attributes;
  attributes.version = static_cast<int>(given.integer("version"));
  attributes.group_ep = given.text("group_ep");
  attributes.group_tp = given.text("group_tp");
  attributes.comm_alg = given.text("comm_alg");
  for (const auto& [name, value] : kAttributes) attributes.*value = given.integer(name);
  return attributes;
}

// The hidden size of rows that are not read yet, for a refusal; 0: unknown.
std::int64_t hidden_of(const Tensor& rows) { return rows.shape.size() == 2 ? rows.dim(1) : 0; }

Matrix<const std::int32_t> read_ids(const Given& given) {
  given.need({"expert_ids"});
  const Tensor ids = given.dense("expert_ids", Element::kInt32, {-1, -1});
  return {static_cast<const std::int32_t*>(ids.data), ids.dim(0), ids.dim(1)};
}

// A new tensor of torch, and its memory.
struct Output {
  nb::object tensor = {};
  void* data = nullptr;
  std::size_t size = 0;

  template <typename T>
  std::span<T> span() const {
    return {static_cast<T*>(data), size};
  }
};

Output new_output(const Shape& shape, Element element, bool zeros = false) {
  nb::object array = new_array(shape, element, Library::kTorch);
  const Tensor tensor = read_tensor(array, "output", true);
  Output output{std::move(array), tensor.data, static_cast<std::size_t>(tensor.size())};
  if (zeros && output.size > 0)
    std::memset(output.data, 0, output.size * python::element_bytes(element));
  return output;
}

std::int64_t tp_size_of(const Attributes& a) { return std::max<std::int64_t>(a.tp_world_size, 1); }

// The experts of this rank, by the rule of the operators: a rank of a shared expert has one.
std::int64_t local_experts(const Attributes& a) {
  const std::int64_t ranks = a.ep_world_size - a.shared_expert_rank_num;
  const std::int64_t index = a.ep_rank_id - a.shared_expert_rank_num;
  if (index < 0) return 1;
  return a.moe_expert_num / ranks + (index < a.moe_expert_num % ranks ? 1 : 0);
}

// torch_npu takes a dtype as torch.dtype or as the number of torch for it.
Element element_of_dtype(nb::handle dtype) {
  std::int64_t number = 0;
  if (!nb::try_cast(dtype, number)) return element_from_object(dtype);
  constexpr std::pair<int, Element> kNumbers[] = {
      {0, Element::kUint8}, {1, Element::kInt8},  {3, Element::kInt32},   {5, Element::kFp16},
      {6, Element::kFp32},  {15, Element::kBf16}, {24, Element::kFp8E4m3}};
  for (const auto& [known, element] : kNumbers) {
    if (number == known) return element;
  }
  return Element::kOther;
}

void check_dtype(const Given& given, const char* name, Element element, const std::string& rule) {
  const nb::object dtype = given.object(name);
  if (dtype.is_none() || element_of_dtype(dtype) == element) return;
  refuse("{} is {}, need None or {}: {}", name, nb::cast<std::string>(nb::str(dtype)),
         element_name(element), rule);
}

// A dispatch with its outputs, in the order of torch_npu. expand_x, which is the first, is made
// when the rows have arrived.
struct DispatchCall {
  cann::DispatchArgs args;
  Output outputs[6];
  Received received;
  Shape rows_shape;
  Element rows_element = Element::kOther;
};

// A single scale per row has no dimension of its own; scales of the caller keep their dimensions.
Shape scales_shape(const Given& given, const cann::DispatchArgs& args, std::int64_t rows) {
  if (args.quant_mode == 3) return {rows, (args.x.hidden + 127) / 128};
  const bool travel = args.quant_mode == 0 && given.tensor("scales").shape.size() == 2;
  return travel ? Shape{rows, args.scales.columns} : Shape{rows};
}

// Must be read first: if another argument cannot be read, the refusal goes to the ranks that
// elastic_info names.
template <typename Args>
void read_elastic_info(const Given& given, Args& args) {
  static constexpr std::int32_t kUnread[] = {-1};
  args.elastic_info = kUnread;
  args.elastic_info = given.vector<const std::int32_t>("elastic_info", Element::kInt32);
}

void read_dispatch(const Given& given, cann::DispatchArgs& args) {
  read_elastic_info(given, args);
  args.attributes = read_attributes(given);
  args.quant_mode = given.integer("quant_mode");
  args.expert_ids = {nullptr, 0, 0};
  args.x.hidden = hidden_of(given.tensor("x"));
  args.expert_ids = read_ids(given);
  given.need({"x"});
  args.x = given.rows("x");
  args.expert_token_nums_type = given.integer("expert_token_nums_type");
  args.scales = given.matrix<float>("scales", Element::kFp32);
  // In one dimension: for quant_mode 0 a scale for each token, else a scale for each channel.
  if (args.quant_mode != 0 && given.tensor("scales").shape.size() == 1)
    std::swap(args.scales.rows, args.scales.columns);
  args.x_active_mask = given.matrix<std::uint8_t>("x_active_mask", Element::kBool);
  args.expert_scales = given.matrix<float>("expert_scales", Element::kFp32);
  args.performance_info = given.vector<std::int64_t>("performance_info", Element::kInt64);
}

void make_outputs(const Given& given, DispatchCall& call) {
  cann::DispatchArgs& args = call.args;
  const Attributes& a = args.attributes;
  const std::int64_t capacity = cann::max_rows(args), rows = tp_size_of(a) * capacity;
  const std::int64_t entries = args.expert_ids.rows * args.expert_ids.columns;
  const Element x = given.tensor("x").element;
  const DataType quantised = args.quant_mode == 3 ? DataType::kFp8E4m3 : DataType::kInt8;
  const Element element = args.quant_mode == 0 ? x : element_of(quantised);
  check_dtype(given, "y_dtype", element, fmt::format("expand_x of quant_mode {}", args.quant_mode));
  check_dtype(given, "x_dtype", x, "x is read by its own dtype");
  check_dtype(given, "scales_dtype", Element::kFp32, "scales are float32");
  auto& [dynamic_scales, indices, token_nums, ep_counts, tp_counts, expand_scales] = call.outputs;
  call.rows_shape = {rows, given.tensor("x").dim(1)};
  call.rows_element = element;
  dynamic_scales = new_output(scales_shape(given, args, rows), Element::kFp32, true);
  indices =
      new_output({a.version == 1 ? entries : std::max(entries, capacity * 128)}, Element::kInt32);
  token_nums = new_output({local_experts(a)}, Element::kInt64);
  ep_counts =
      new_output({tp_size_of(a) * local_experts(a) * a.ep_world_size}, Element::kInt32, true);
  tp_counts = new_output({a.tp_world_size}, Element::kInt32);
  expand_scales = new_output({rows}, Element::kFp32, true);

  args.received = &call.received;
  args.dynamic_scales = dynamic_scales.span<float>();
  (a.version == 1 ? args.expand_idx : args.assist_info_for_combine) = indices.span<std::int32_t>();
  args.expert_token_nums = token_nums.span<std::int64_t>();
  args.ep_recv_counts = ep_counts.span<std::int32_t>();
  args.tp_recv_counts = tp_counts.span<std::int32_t>();
  args.expand_scales = expand_scales.span<float>();
}

// expand_x has as many rows as the operators define. It is a view of the window, which it pins. If
// too many views were alive, dispatch has copied the rows, and they are copied here again.
nb::object take_rows(DispatchCall& call) {
  const Received& received = call.received;
  FERRY_CHECK(received.num_rows, <=, call.rows_shape[0]);
  if (received.room_rows >= call.rows_shape[0]) {
    return make_array({received.data, call.rows_shape, {}, call.rows_element, received.pin},
                      Library::kTorch);
  }
  const Output output = new_output(call.rows_shape, call.rows_element);
  const std::size_t row_bytes = call.rows_shape[1] * python::element_bytes(call.rows_element);
  if (received.num_rows > 0) std::memcpy(output.data, received.data, received.num_rows * row_bytes);
  return output.tensor;
}

// A combine with its outputs: x or, with the norm, y, rstd and x.
struct CombineCall {
  bool norm = false;
  cann::CombineAddRmsNormArgs args = {};
  Output x = {}, y = {}, rstd = {};
};

void read_combine(const Given& given, cann::CombineArgs& args) {
  read_elastic_info(given, args);
  args.attributes = read_attributes(given);
  args.comm_quant_mode = given.integer("comm_quant_mode");
  args.expert_ids = {nullptr, 0, 0};
  args.expand_x.hidden = hidden_of(given.tensor("expand_x"));
  args.expert_ids = read_ids(given);
  const bool first = args.attributes.version == 1;
  given.need({"expand_x", first ? "expand_idx" : "assist_info_for_combine", "ep_send_counts",
              "expert_scales"});
  args.expand_x = given.rows("expand_x");
  args.out_dtype = given.integer("out_dtype");
  args.group_list_type = given.integer("group_list_type");
  args.expand_idx = given.vector<const std::int32_t>("expand_idx", Element::kInt32);
  args.assist_info_for_combine =
      given.vector<const std::int32_t>("assist_info_for_combine", Element::kInt32);
  args.ep_send_counts = given.vector<const std::int32_t>("ep_send_counts", Element::kInt32);
  args.tp_send_counts = given.vector<const std::int32_t>("tp_send_counts", Element::kInt32);
  args.expert_scales = given.matrix<float>("expert_scales", Element::kFp32);
  if (args.expert_scales.rows * args.expert_scales.columns == 0) args.expert_scales = {};
  args.x_active_mask = given.matrix<std::uint8_t>("x_active_mask", Element::kBool);
  args.expand_scales = given.vector<const float>("expand_scales", Element::kFp32);
  args.performance_info = given.vector<std::int64_t>("performance_info", Element::kInt64);
  args.ori_x = given.rows("ori_x");
  args.const_expert_alpha1 = given.rows("const_expert_alpha_1");
  args.const_expert_alpha2 = given.rows("const_expert_alpha_2");
  args.const_expert_v = given.rows("const_expert_v");
  const auto reserved = [&](const char* name) -> const void* {
    const nb::object object = given.object(name);
    return object.is_none() ? nullptr : object.ptr();
  };
  args.activation_scale = reserved("activation_scale");
  args.weight_scale = reserved("weight_scale");
  args.group_list = reserved("group_list");
}

// Reads a dense [..., H] of the element type of expand_x as rows of H.
Rows dense_rows(const Given& given, const char* name, Element element, const Shape& shape) {
  const Tensor tensor = given.dense(name, element, shape);
  if (!tensor.given()) return {};
  const std::int64_t hidden = shape.back();
  return {tensor.data, hidden > 0 ? tensor.size() / hidden : 0, hidden, data_type(tensor, name)};
}

void prepare_combine(const Given& given, CombineCall& call) {
  cann::CombineArgs& args = call.args.combine;
  read_combine(given, args);
  const Element element = given.tensor("expand_x").element;
  const std::int64_t bs = args.expert_ids.rows, hidden = args.expand_x.hidden;
  const bool deep = given.tensor("shared_expert_x").shape.size() == 3;
  args.shared_expert_x = dense_rows(given, "shared_expert_x", element,
                                    deep ? Shape{-1, -1, hidden} : Shape{-1, hidden});
  const Shape shape = call.norm ? Shape{bs, 1, hidden} : Shape{bs, hidden};
  const auto out = [&](Output& output) -> cann::RowsOut {
    output = new_output(shape, element);
    return {output.data, bs, hidden, args.expand_x.dtype};
  };
  args.x_out = out(call.x);
  if (!call.norm) return;
  given.need({"residual_x", "gamma"});
  call.args.residual_x = dense_rows(given, "residual_x", element, shape);
  call.args.gamma = dense_rows(given, "gamma", element, {hidden});
  call.args.norm_eps = given.real("norm_eps");
  call.args.y_out = out(call.y);
  call.rstd = new_output({bs, 1, 1}, Element::kFp32);
  call.args.rstd_out = call.rstd.span<float>();
}

// A communicator that a forked child cannot use, and its group.
struct PyCommunicator {
  PyGroup group;
  std::shared_ptr<Kept<cann::Communicator>> kept;
  std::shared_ptr<std::mutex> turn;

  const cann::Communicator& get() const {
    group.get();  // throws in a forked child
    return **kept;
  }
  // Throws where another thread has the turn.
  std::unique_lock<std::mutex> take_turn() const {
    std::unique_lock lock(*turn, std::try_to_lock);
    if (!lock) refuse("another thread is in a call of this group: one caller at a time");
    return lock;
  }
};

// Runs `prepare`, which reads the arguments of this rank. If it throws, the call is refused on all
// ranks.
template <typename Prepare, typename Refuse>
void prepare_or(const Prepare& prepare, const Refuse& refuse) {
  Status why;
  try {
    return prepare();
  } catch (const Error& error) {
    why = Status(error.code(), error.what());
  } catch (const std::exception& error) {  // exceptions of Python too, such as MemoryError
    why = Status(Code::kInvalidArgument, error.what());
  }
  check(without_gil([&] { return refuse(why).status; }));
}

nb::tuple dispatch(const PyCommunicator& self, const nb::dict& arguments) {
  const cann::Communicator& communicator = self.get();
  const auto turn = self.take_turn();
  const Given given(arguments);
  DispatchCall call;
  prepare_or(
      [&] {
        read_dispatch(given, call.args);
        make_outputs(given, call);
      },
      [&](const Status& why) { return cann::refuse_dispatch(communicator, call.args, why); });
  check(without_gil([&] { return cann::moe_distribute_dispatch(communicator, call.args).status; }));
  const auto& [scales, indices, token_nums, ep_counts, tp_counts, expand_scales] = call.outputs;
  return nb::make_tuple(take_rows(call), scales.tensor, indices.tensor, token_nums.tensor,
                        ep_counts.tensor, tp_counts.tensor, expand_scales.tensor);
}

CombineCall run_combine(const PyCommunicator& self, const nb::dict& arguments, bool norm) {
  const cann::Communicator& communicator = self.get();
  const auto turn = self.take_turn();
  const Given given(arguments);
  CombineCall call{.norm = norm};
  prepare_or([&] { prepare_combine(given, call); },
             [&](const Status& why) {
               return cann::refuse_combine(communicator, call.args.combine, why);
             });
  check(without_gil([&] {
    return norm ? cann::moe_distribute_combine_add_rms_norm(communicator, call.args).status
                : cann::moe_distribute_combine(communicator, call.args.combine).status;
  }));
  return call;
}

}  // namespace

void bind_cann(nb::module_& module) {
  nb::class_<PyCommunicator>(
      module, "CannCommunicator",
      "The group behind CANN's group_ep and group_tp. Its calls are collective.")
      .def(
          "__init__",
          [](PyCommunicator* self, const PyGroup& group, const std::string& group_ep,
             const std::string& group_tp, int workers) {
            cann::CommunicatorOptions options{group_ep, group_tp, workers};
            cann::Communicator made(group.get(), std::move(options));
            new (self)
                PyCommunicator{group, std::make_shared<Kept<cann::Communicator>>(std::move(made)),
                               std::make_shared<std::mutex>()};
          },
          arg("group"), arg("group_ep"), arg("group_tp") = "", arg("workers") = 1)
      .def("dispatch", &dispatch, arg("arguments"),
           "MoeDistributeDispatch: torch_npu's seven tensors.")
      .def(
          "combine",
          [](const PyCommunicator& self, const nb::dict& arguments) {
            return run_combine(self, arguments, false).x.tensor;
          },
          arg("arguments"), "MoeDistributeCombine: x.")
      .def(
          "combine_add_rms_norm",
          [](const PyCommunicator& self, const nb::dict& arguments) {
            const CombineCall call = run_combine(self, arguments, true);
            return nb::make_tuple(call.y.tensor, call.rstd.tensor, call.x.tensor);
          },
          arg("arguments"), "MoeDistributeCombineAddRmsNorm: y, rstd, x.");
}

}  // namespace ferry::python
