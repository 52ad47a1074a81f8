// The bindings of ferry::cuda::Exchange: addresses and streams of CUDA are integers in Python.
#include "core/bindings.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "core/config.h"
#include "core/errors.h"
#include "core/forked.h"
#include "core/group.h"
#include "core/tensor.h"
#include "ferry/cuda.h"

namespace ferry::python {

namespace {

using nb::arg;

// The arguments in the form of ferry/cuda.py. An address of 0 stands for no memory.
using Address = std::uintptr_t;
// (address, rows, hidden, dtype, bytes between rows; 0: dense)
using GivenRows = std::tuple<Address, std::int64_t, std::int64_t, nb::object, std::int64_t>;
// (address, tokens, top_k, whether the ids are int64)
using GivenIds = std::tuple<Address, std::int64_t, int, bool>;
// (tokens, ids, weights, CudaHandle or None, whether to wait for counts)
using GivenDispatch = std::tuple<GivenRows, GivenIds, Address, nb::object, bool>;
// (handle, rows of experts, (address, dtype) of the result, weights, two biases)
using GivenCombine = std::tuple<nb::object, GivenRows, std::tuple<Address, nb::object>, Address,
                                std::tuple<Address, Address>>;

struct PyCudaExchange {
  explicit PyCudaExchange(cuda::Exchange made) : exchange(std::move(made)) {}
  // Destroys the exchange without the GIL: its kernels end first, and they may wait for ranks that
  // need the interpreter.
  ~PyCudaExchange() {
    if (exchange.mine()) without_gil([&] { *exchange = cuda::Exchange(); });
  }
  PyCudaExchange(const PyCudaExchange&) = delete;
  PyCudaExchange& operator=(const PyCudaExchange&) = delete;

  const cuda::Exchange& get() const {
    if (!exchange.mine())
      throw Error(Code::kClosed, "this process was forked after the exchange was made");
    return *exchange;
  }

  Kept<cuda::Exchange> exchange;
  std::atomic<bool> busy{false};
};

template <typename T>
Address address_of(const T* pointer) {
  return reinterpret_cast<Address>(pointer);
}

template <typename T>
T* pointer_to(Address address) {
  return reinterpret_cast<T*>(address);  // NOLINT(performance-no-int-to-ptr): as Python has them
}

DataType type_of(const nb::object& dtype, const char* name) {
  Tensor tensor;
  tensor.element = element_from_object(dtype);
  return data_type(tensor, name);
}

Rows rows_of(const GivenRows& given, const char* name) {
  const auto& [data, num_rows, hidden, dtype, pitch_bytes] = given;
  return {pointer_to<void>(data), num_rows, hidden, type_of(dtype, name), pitch_bytes};
}

void make(PyCudaExchange* self, const PyGroup& group, int device, const nb::kwargs& settings) {
  Group members = group.get();
  ExchangeConfig config;
  try {
    if (cuda::built()) config = read_config(settings);
  } catch (const Error& error) {
    const Status why(error.code(), error.what(), members.rank());
    without_gil([&] { Exchange::refuse(members, why); });
  }
  // As many bytes as a row of the type of the tokens has, and the float32 scalars of a row
  // (ferry/cuda.py).
  if (config.max_output_row_bytes == 0) {
    const auto element = static_cast<std::int64_t>(element_bytes(element_of(config.dtype)));
    config.max_output_row_bytes =
        std::max(config.hidden * element, std::int64_t{sizeof(float)} * config.top_k);
  }
  new (self) PyCudaExchange(without_gil([&] { return cuda::Exchange(members, config, device); }));
}

// Makes a call without the GIL, one at a time; raises an error that it returns.
template <typename Call>
void run(PyCudaExchange& self, const Call& call) {
  self.get();
  // Acquire: the writes of the previous call. Partner: the store below.
  if (self.busy.exchange(true, std::memory_order_acquire))
    refuse("another thread is in a call of this exchange: one caller at a time");
  const Status status = without_gil([&] { return call(*self.exchange); });
  self.busy.store(false, std::memory_order_release);
  check(status);
}

template <bool send>
cuda::Received dispatch(PyCudaExchange& self, const GivenDispatch& given, Address stream) {
  const auto& [tokens, topk_ids, topk_weights, cached, wait_for_counts] = given;
  const auto& [ids, num_tokens, top_k, wide] = topk_ids;
  const cuda::DispatchArgs args{
      .tokens = rows_of(tokens, "tokens"),
      .topk_ids = {pointer_to<void>(ids), num_tokens, top_k,
                   wide ? IndexType::kInt64 : IndexType::kInt32},
      .topk_weights = pointer_to<float>(topk_weights),
      .cached = cached.is_none() ? cuda::Handle() : nb::cast<cuda::Handle>(cached),
      .wait_for_counts = wait_for_counts,
      .stream = pointer_to<void>(stream)};
  cuda::Received received;
  run(self, [&](cuda::Exchange& exchange) {
    return send ? exchange.dispatch_send(args, received) : exchange.dispatch(args, received);
  });
  return received;
}

template <bool send>
void combine(PyCudaExchange& self, const GivenCombine& given, Address stream) {
  const auto& [handle, expert_rows, out, topk_weights, bias] = given;
  const auto& [to, out_dtype] = out;
  const auto& [first, second] = bias;
  const cuda::CombineArgs args{.handle = nb::cast<cuda::Handle>(handle),
                               .expert_rows = rows_of(expert_rows, "expert_rows"),
                               .topk_weights = pointer_to<float>(topk_weights),
                               .bias = {pointer_to<void>(first), pointer_to<void>(second)},
                               .out = pointer_to<void>(to),
                               .out_dtype = type_of(out_dtype, "out"),
                               .stream = pointer_to<void>(stream)};
  run(self, [&](cuda::Exchange& exchange) {
    return send ? exchange.combine_send(args) : exchange.combine(args);
  });
}

template <Status (cuda::Exchange::*call)(cuda::Stream) noexcept>
void receive(PyCudaExchange& self, Address stream) {
  run(self, [&](cuda::Exchange& exchange) { return (exchange.*call)(pointer_to<void>(stream)); });
}

template <Status (cuda::Exchange::*call)() noexcept>
void plain(PyCudaExchange& self) {
  run(self, [](cuda::Exchange& exchange) { return (exchange.*call)(); });
}

// Returns ok for the error of the refusal itself, for which the caller has a better text, and any
// other error unchanged.
Status what_broke(Status status) {
  return status.code() == Code::kInvalidArgument ? Status() : std::move(status);
}

// Makes a call that the engine refuses on all ranks.
void refuse_dispatch(PyCudaExchange& self, Address stream) {
  run(self, [&](cuda::Exchange& exchange) {
    cuda::Received received;
    return what_broke(exchange.dispatch(
        {.topk_ids = {.num_tokens = -1}, .stream = pointer_to<void>(stream)}, received));
  });
}

void refuse_combine(PyCudaExchange& self, Address stream) {
  run(self, [&](cuda::Exchange& exchange) {
    return what_broke(exchange.combine({.stream = pointer_to<void>(stream)}));
  });
}

using Counts = std::vector<std::int64_t>;

Counts copy_of(std::span<const std::int64_t> counts) { return {counts.begin(), counts.end()}; }

template <const std::int64_t* (cuda::Handle::*at)() const noexcept>
Address counts_at(const cuda::Handle& handle) {
  return address_of((handle.*at)());
}

template <auto member>
Address field(const cuda::Received& received) {
  return address_of(received.*member);
}

void bind_cuda_results(nb::module_& module) {
  using cuda::Handle, cuda::Received;
  nb::class_<Handle>(module, "CudaHandle", "cuda::Handle; device_* are addresses of int64.")
      .def_prop_ro("num_tokens", &Handle::num_tokens)
      .def_prop_ro("num_rows", &Handle::num_rows)
      .def_prop_ro("tokens_per_expert",
                   [](const Handle& h) { return copy_of(h.tokens_per_expert()); })
      .def_prop_ro("aligned_tokens_per_expert",
                   [](const Handle& h) { return copy_of(h.aligned_tokens_per_expert()); })
      .def_prop_ro("device_tokens_per_expert", &counts_at<&Handle::device_tokens_per_expert>)
      .def_prop_ro("device_aligned_tokens_per_expert",
                   &counts_at<&Handle::device_aligned_tokens_per_expert>)
      .def_prop_ro("device_expert_offsets", &counts_at<&Handle::device_expert_offsets>)
      .def_prop_ro("device_running_counts", &counts_at<&Handle::device_running_counts>)
      .def_prop_ro("device_running_rows_per_rank",
                   &counts_at<&Handle::device_running_rows_per_rank>);
  nb::class_<Received>(module, "CudaReceived", "cuda::Received; arrays are addresses, 0 for none.")
      .def_prop_ro("data", &field<&Received::data>)
      .def_prop_ro("sources", &field<&Received::sources>)
      .def_prop_ro("weights", &field<&Received::weights>)
      .def_prop_ro("topk_ids", &field<&Received::topk_ids>)
      .def_prop_ro("scales", &field<&Received::scales>)
      .def_ro("scale_columns", &Received::scale_columns)
      .def_ro("num_rows", &Received::num_rows)
      .def_prop_ro("dtype", [](const Received& r) { return element_name(element_of(r.dtype)); })
      .def_ro("handle", &Received::handle);
}

}  // namespace

void bind_cuda(nb::module_& module) {
  using cuda::Exchange;
  bind_cuda_results(module);
  nb::class_<PyCudaExchange>(module, "CudaExchange",
                             "cuda::Exchange, for ferry.cuda; core/cuda.cc defines the tuples.")
      .def("__init__", &make, arg("group"), arg("device"), arg("settings"),
           nb::sig("def __init__(self, group: Group, device: int, "
                   "**settings: typing_extensions.Unpack[Settings]) -> None"))
      .def("dispatch", &dispatch<false>, arg("given"), arg("stream"))
      .def("dispatch_send", &dispatch<true>, arg("given"), arg("stream"))
      .def("dispatch_recv", &receive<&Exchange::dispatch_recv>, arg("stream"))
      .def("combine", &combine<false>, arg("given"), arg("stream"))
      .def("combine_send", &combine<true>, arg("given"), arg("stream"))
      .def("combine_recv", &receive<&Exchange::combine_recv>, arg("stream"))
      .def("refuse_dispatch", &refuse_dispatch, arg("stream"))
      .def("refuse_combine", &refuse_combine, arg("stream"))
      .def("check", &plain<&Exchange::check>)
      .def("finish", &plain<&Exchange::finish>)
      .def_prop_ro("outputs",
                   [](const PyCudaExchange& self) { return address_of(self.get().outputs()); })
      .def_prop_ro(
          "config", [](const PyCudaExchange& self) { return write_config(self.get().config()); },
          nb::sig("def config(self, /) -> Settings"))
      .def_prop_ro("num_local_experts",
                   [](const PyCudaExchange& self) { return self.get().num_local_experts(); })
      .def_prop_ro("row_capacity",
                   [](const PyCudaExchange& self) { return self.get().row_capacity(); })
      .def_prop_ro("device_bytes",
                   [](const PyCudaExchange& self) { return self.get().device_bytes(); })
      .def_prop_ro("shares_device",
                   [](const PyCudaExchange& self) { return self.get().shares_device(); });
  module.def("cuda_built", &cuda::built, "Whether this ferry was built with CUDA.");
  module.def("cuda_num_devices", &cuda::num_devices,
             "Number of CUDA devices here; 0 without a driver.");
}

}  // namespace ferry::python
