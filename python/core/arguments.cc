#include "core/arguments.h"
#include "core/arrays.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "core/errors.h"
#include "core/results.h"
#include "ferry/status.h"

namespace ferry::python {

namespace {

// Rows [num_rows, hidden] that may have a pitch; [sections, capacity, hidden] must be dense.
Rows read_rows(const Tensor& tensor, const char* name) {
  const std::size_t dims = tensor.shape.size();
  if (dims != 2 && dims != 3) refuse("{} is {}, need [rows, hidden]", name, tensor.describe());
  const std::int64_t hidden = tensor.shape.back();
  const std::int64_t bytes = element_bytes(tensor.element);
  Rows rows{.data = tensor.data,
            .num_rows = hidden ? tensor.size() / hidden : tensor.dim(0),
            .hidden = hidden,
            .dtype = data_type(tensor, name)};
  if (tensor.dense()) return rows;
  if (dims == 3 || (hidden > 1 && tensor.strides[1] != 1) || tensor.strides[0] < hidden)
    refuse(
        "{} is {} with strides that are not those of rows of contiguous elements: need a "
        "contiguous array",
        name, tensor.describe());
  rows.pitch_bytes = tensor.strides[0] * bytes;
  return rows;
}

using KeptObjects = std::vector<nb::object>;

// Keeps the owner of the memory of the tensor, and returns its data.
template <typename T>
T* keep(KeptObjects& kept, Tensor& tensor) {
  kept.push_back(std::move(tensor.owner));
  return static_cast<T*>(tensor.data);
}

template <typename T>
T* read(KeptObjects& kept, nb::handle object, const Expected& expected) {
  if (object.is_none()) return nullptr;
  Tensor tensor = read_dense(object, expected);
  return keep<T>(kept, tensor);
}

constexpr std::size_t kUsuallyKept = 4;  // most calls keep no more arrays
constexpr Elements kFloat{Element::kFp32};
constexpr Elements kMask{Element::kBool, Element::kUint8};

void read_ids(const DispatchObjects& objects, DispatchInput& input) {
  if (objects.topk_ids.is_none()) return;
  Tensor ids =
      read_dense(objects.topk_ids, {"topk_ids", {Element::kInt64, Element::kInt32}, {-1, -1}});
  input.args.topk_ids = {ids.data, ids.dim(0), static_cast<int>(ids.dim(1)),
                         ids.element == Element::kInt32 ? IndexType::kInt32 : IndexType::kInt64};
  keep<void>(input.kept, ids);
}

void read_tokens(const DispatchObjects& objects, const ExchangeConfig& config,
                 DispatchInput& input) {
  Tensor tokens = read_tensor(objects.tokens, "tokens");
  if (!tokens.given()) refuse("tokens is None, need [tokens, hidden]");
  check_shape(tokens, "tokens", {-1, -1});
  input.library = library_of(objects.tokens);
  if (config.dtype == DataType::kBytes && element_bytes(tokens.element) == 1)
    tokens.element = Element::kUint8;
  input.args.tokens = read_rows(tokens, "tokens");
  keep<void>(input.kept, tokens);
}

void read_scales(const DispatchObjects& objects, const ExchangeConfig& config,
                 DispatchInput& input) {
  if (!objects.scales.is_none()) {
    Tensor scales = read_dense(objects.scales, {"scales", kFloat, {-1, -1}});
    input.args.scales = {static_cast<const float*>(scales.data), static_cast<int>(scales.dim(0)),
                         scales.dim(1)};
    keep<void>(input.kept, scales);
  }
  if (objects.token_scales.is_none()) return;
  Tensor scales = read_tensor(objects.token_scales, "token_scales");
  const std::int64_t bytes = scales.size() * static_cast<std::int64_t>(scales.item_bytes);
  const std::int64_t tokens = input.args.tokens.num_rows;
  if (!scales.dense() || scales.shape.size() != 2 || scales.dim(0) != tokens ||
      bytes != tokens * config.scale_bytes)
    refuse("token_scales is {} ({} bytes), need a contiguous [{}, n] of {} bytes in each row",
           scales.describe(), bytes, tokens, config.scale_bytes);
  input.scale_element = scales.element;
  input.args.token_scales = keep<const void>(input.kept, scales);
}

}  // namespace

std::chrono::nanoseconds read_deadline(nb::handle deadline) {
  return deadline.is_none() ? std::chrono::nanoseconds(0) : to_deadline(nb::cast<double>(deadline));
}

void read_dispatch(const DispatchObjects& objects, const ExchangeConfig& config,
                   DispatchInput& input) {
  input.kept.reserve(kUsuallyKept);
  if (!objects.handle.is_none()) input.args.cached = read_handle(objects.handle);
  if (!objects.active_ranks.is_none())
    input.active_ranks = nb::cast<std::vector<int>>(objects.active_ranks);
  input.args.active_ranks = input.active_ranks;
  read_tokens(objects, config, input);
  read_ids(objects, input);
  const std::int64_t tokens = input.args.tokens.num_rows;
  KeptObjects& kept = input.kept;
  input.args.topk_weights = read<const float>(kept, objects.topk_weights,
                                              {"topk_weights", kFloat, {tokens, config.top_k}});
  input.args.token_mask =
      read<const std::uint8_t>(kept, objects.token_mask, {"token_mask", kMask, {tokens}});
  input.args.topk_mask = read<const std::uint8_t>(kept, objects.topk_mask,
                                                  {"topk_mask", kMask, {tokens, config.top_k}});
  read_scales(objects, config, input);
  const auto logical = static_cast<std::int64_t>(config.replicas.instances.size());
  input.args.replica_table = read<const std::int32_t>(
      kept, objects.replica_table, {"replica_table", {Element::kInt32}, {logical}});
  input.args.deadline = read_deadline(objects.deadline);
}

namespace {

constexpr const char* kDispatchNames[] = {
    "tokens", "topk_ids",     "topk_weights",  "handle",       "token_mask", "topk_mask",
    "scales", "token_scales", "replica_table", "active_ranks", "deadline"};

// dispatched: the arguments of the dispatch, by name.
void read_dispatched(nb::handle object, const ExchangeConfig& config, DispatchInput& input) {
  const nb::object none = nb::none();
  const auto given = nb::cast<nb::dict>(object);
  for (const auto& [key, unused] : given) {
    const auto name = nb::cast<std::string>(key);
    if (std::find(std::begin(kDispatchNames), std::end(kDispatchNames), name) ==
        std::end(kDispatchNames))
      refuse("dispatched has \"{}\", which is not an argument of dispatch", name);
  }
  const auto entry = [&](const char* name) -> nb::handle {
    return given.contains(name) ? nb::handle(PyDict_GetItemString(given.ptr(), name))
                                : nb::handle(none);
  };
  read_dispatch({.tokens = entry("tokens"),
                 .topk_ids = entry("topk_ids"),
                 .topk_weights = entry("topk_weights"),
                 .handle = none,
                 .token_mask = entry("token_mask"),
                 .topk_mask = entry("topk_mask"),
                 .scales = none,
                 .token_scales = none,
                 .replica_table = entry("replica_table"),
                 .active_ranks = entry("active_ranks"),
                 .deadline = none},
                config, input);
}

void read_biases(nb::handle bias, const Expected& expected, CombineInput& input) {
  if (bias.is_none()) return;
  const bool several = nb::isinstance<nb::tuple>(bias) || nb::isinstance<nb::list>(bias);
  const std::size_t count = several ? nb::len(bias) : 1;
  if (count > 2) refuse("bias has {} tensors, need at most 2", count);
  for (std::size_t i = 0; i < count; ++i) {
    const nb::object each = several ? nb::object(bias[i]) : nb::borrow(bias);
    input.args.bias[i] = read<const void>(input.kept, each, expected);
  }
}

// Reads `out`, or makes a new array of the library of the rows. Returns its shape, [tokens,
// hidden].
Shape read_out(const CombineObjects& objects, std::int64_t tokens, Element rows_element,
               CombineInput& input) {
  const Shape shape{tokens, input.args.expert_rows.hidden};
  if (objects.out.is_none()) {
    const Element element =
        objects.out_dtype.is_none() ? rows_element : element_from_object(objects.out_dtype);
    input.out = new_array({std::max<std::int64_t>(tokens, 0), shape[1]}, element,
                          library_of(objects.expert_rows));
  } else {
    input.out = nb::borrow(objects.out);
  }
  Tensor out = read_tensor(input.out, "out", true);
  check_shape(out, "out", shape);
  const Rows rows = read_rows(out, "out");
  input.args.out = out.data;
  input.args.out_dtype = rows.dtype;
  input.args.out_pitch_bytes = rows.pitch_bytes;
  keep<void>(input.kept, out);
  return shape;
}

Partials read_partials(nb::handle object) {
  const auto name = nb::cast<std::string>(nb::str(object));
  if (name == "none") return Partials::kNone;
  if (name == "per_rank") return Partials::kPerRank;
  refuse("partials is \"{}\", need none or per_rank", name);
}

void read_constants(nb::handle constants, const ExchangeConfig& config, CombineInput& input) {
  if (constants.is_none()) return;
  if (nb::len(constants) != 3)
    refuse("constants has {} tensors, need 3: (alpha1, alpha2, v)", nb::len(constants));
  const Expected expected{
      "constants", {element_of(config.dtype)}, {config.special.constant, config.hidden}};
  const void** const targets[] = {&input.args.constants.alpha1, &input.args.constants.alpha2,
                                  &input.args.constants.v};
  for (int i = 0; i < 3; ++i)
    *targets[i] = read<const void>(input.kept, nb::object(constants[i]), expected);
}

void read_norm(const CombineObjects& objects, const Shape& shape, Element element,
               CombineInput& input) {
  KeptObjects& kept = input.kept;
  ResidualNorm& norm = input.args.norm;
  norm.residual = read<const void>(kept, objects.residual, {"residual", {element}, shape});
  norm.gamma = read<const void>(kept, objects.gamma, {"gamma", {element}, {shape[1]}});
  norm.epsilon = nb::cast<float>(objects.epsilon);
  norm.y = read<void>(kept, objects.y, {"y", {element}, shape, true});
  norm.rstd = read<float>(kept, objects.rstd, {"rstd", kFloat, {shape[0]}, true});
}

}  // namespace

void read_combine(const CombineObjects& objects, const ExchangeConfig& config,
                  CombineInput& input) {
  CombineArgs& args = input.args;
  KeptObjects& kept = input.kept;
  kept.reserve(kUsuallyKept);
  if (!objects.handle.is_none()) args.handle = read_handle(objects.handle);
  if (!objects.dispatched.is_none()) {
    input.dispatched = std::make_unique<DispatchInput>();
    args.dispatched = &input.dispatched->args;
    read_dispatched(objects.dispatched, config, *input.dispatched);
  }
  Tensor rows = read_tensor(objects.expert_rows, "expert_rows");
  if (!rows.given()) refuse("expert_rows is None, need [rows, hidden]");
  args.expert_rows = read_rows(rows, "expert_rows");
  const Element rows_element = rows.element;
  keep<void>(kept, rows);

  if (!args.handle && !args.dispatched) refuse("combine needs a handle, or dispatched=");
  // A rank outside the active set has a handle of no tokens, and may pass the same tensors as the
  // ranks in it, so their lengths are not checked.
  const std::int64_t known =
      args.handle ? args.handle.num_tokens() : args.dispatched->tokens.num_rows;
  const std::int64_t tokens = known > 0 ? known : -1;
  const Shape shape = read_out(objects, tokens, rows_element, input);
  const Element element = element_of(args.out_dtype);
  const Shape weights{tokens, config.top_k};
  args.topk_weights =
      read<const float>(kept, objects.topk_weights, {"topk_weights", kFloat, weights});
  args.out_topk_weights =
      read<float>(kept, objects.out_topk_weights, {"out_topk_weights", kFloat, weights, true});
  const std::int64_t num_rows = args.expert_rows.num_rows;
  const Shape row_weights =
      config.layout == Layout::kRankMajor ? Shape{num_rows, config.top_k} : Shape{num_rows};
  args.row_weights =
      read<const float>(kept, objects.row_weights, {"row_weights", kFloat, row_weights});
  read_biases(objects.bias, {"bias", {element}, shape}, input);
  read_constants(objects.constants, config, input);
  args.shared_output =
      read<const void>(kept, objects.shared_output, {"shared_output", {element}, shape});
  read_norm(objects, shape, element, input);
  args.partials = read_partials(objects.partials);
  args.in_place = nb::cast<bool>(objects.in_place);
  args.deadline = read_deadline(objects.deadline);
}

}  // namespace ferry::python
