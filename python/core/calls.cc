#include "core/calls.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <numeric>
#include <optional>
#include <vector>

#include "base/check.h"
#include "core/arrays.h"
#include "core/config.h"
#include "core/errors.h"
#include "core/experts.h"
#include "ferry/layer.h"

namespace ferry::python {

struct Half {
  Operation operation;
  DispatchInput dispatch;
  std::unique_ptr<CombineInput> combine;  // null for a dispatch
};

// All members except `exchange` are read and written only with the GIL.
struct State {
  Exchange exchange;
  PyGroup group;
  std::shared_ptr<const ExchangeConfig> config = {};
  std::atomic<bool> busy{false};
  std::optional<Library> library;           // that of the tokens of the last dispatch
  std::vector<std::shared_ptr<Half>> sent;  // halves that were sent and not received
  // The values at the end of the last call, for threads that read them while another call runs.
  Handle handle = {};
  ExchangeStats stats = {};
  std::vector<std::int64_t> dispatch_wait_ns, combine_wait_ns;

  void look() {
    stats = exchange.stats();
    dispatch_wait_ns = exchange.last_dispatch_times().wait_ns;
    combine_wait_ns = exchange.last_combine_times().wait_ns;
  }
};

namespace {

void read_into(State& state, const DispatchObjects& objects, DispatchInput& input) {
  read_or_refuse([&] { read_dispatch(objects, state.exchange.config(), input); },
                 [&](const Status& why) {
                   return state.exchange.refuse_dispatch(why, input.args.chosen_ranks());
                 });
  state.library = input.library;
}

void read_into(State& state, const CombineObjects& objects, CombineInput& input) {
  read_or_refuse(
      [&] { read_combine(objects, state.exchange.config(), input); },
      [&](const Status& why) { return state.exchange.refuse_combine(why, input.chosen_ranks()); });
}

PyReceived received_of(State& state, Received&& received, const DispatchInput& input) {
  PyReceived result;
  state.handle = received.handle;
  **result.kept = std::move(received);
  result.library = input.library;
  result.config = state.config;
  result.scale_element = input.scale_element;
  result.num_ranks = state.group.get().size();
  FERRY_CHECK((*result.kept)->num_rows, >=, 0);
  FERRY_CHECK((*result.kept)->handle.num_rows(), ==, (*result.kept)->num_rows);
  return result;
}

Status receive_half(State& state, const Half& half, Received& received) {
  return without_gil([&] {
    return half.combine ? state.exchange.combine_recv(half.operation)
                        : state.exchange.dispatch_recv(half.operation, received);
  });
}

void forget(State& state, const Half& half) {
  std::erase_if(state.sent, [&](const auto& each) { return each.get() == &half; });
}

// Receives the halves whose operations Python has dropped. Their results are lost.
void receive_dropped(State& state) {
  const auto dropped = [](const std::shared_ptr<Half>& each) { return each.use_count() == 1; };
  while (true) {
    const auto found = std::find_if(state.sent.begin(), state.sent.end(), dropped);
    if (found == state.sent.end()) return;
    const std::shared_ptr<Half> half = *found;
    forget(state, *half);
    Received received;
    const Status status = receive_half(state, *half, received);
    if (!status.group_usable()) check(status);
  }
}

// Makes a call that takes the place of an operation.
template <typename Call>
Status instead(const PyExchange& self, nb::handle active_ranks, const Call& call) {
  const Turn turn(self);
  receive_dropped(*turn);
  std::vector<int> active;
  if (!active_ranks.is_none() && !nb::try_cast(active_ranks, active))
    active.assign(std::begin(kUnknownRanks), std::end(kUnknownRanks));
  return without_gil([&] { return call(turn->exchange, active); });
}

template <auto call>
void refuse(const PyExchange& self, const std::string& why, nb::handle active_ranks) {
  const Status done = instead(self, active_ranks, [&](Exchange& exchange, const auto& active) {
    return (exchange.*call)({Code::kInvalidArgument, why}, active, nullptr);
  });
  if (done.code() != Code::kInvalidArgument) check(done);  // not the error of this refusal
}

std::string text_of(const nb::python_error& error) {
  return fmt::format("{}: {}", nb::cast<std::string>(error.type().attr("__name__")),
                     nb::cast<std::string>(nb::str(error.value())));
}

double imbalance(const Handle& handle) {
  const auto counts = handle.tokens_per_expert();
  const std::int64_t all = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  if (all == 0) return 1;
  const auto most = static_cast<double>(*std::max_element(counts.begin(), counts.end()));
  return most * static_cast<double>(counts.size()) / static_cast<double>(all);
}

PyExchange owned(const PyGroup& group, Exchange exchange) {
  auto state = std::make_shared<State>();
  state->group = group;
  state->exchange = std::move(exchange);
  state->config = std::make_shared<const ExchangeConfig>(state->exchange.config());
  return PyExchange(std::move(state), "exchange");
}

}  // namespace

PyExchange make_exchange(const PyGroup& group, const nb::args& args, const nb::kwargs& keywords) {
  Group members = group.get();
  ExchangeConfig config;
  try {
    if (args.size() > 0)
      refuse("the settings of an exchange need keywords, {} came without one", args.size());
    config = read_config(keywords);
  } catch (const Error& error) {
    const Status why(error.code(), error.what(), members.rank());
    without_gil([&] { Exchange::refuse(members, why); });
  }
  return owned(group, without_gil([&] { return Exchange(members, config); }));
}

PyExchange join_exchange(const PyGroup& group, const nb::kwargs& keywords) {
  const Group members = group.get();
  const ExchangeConfig config = read_config(keywords);
  return owned(group, without_gil([&] { return Exchange::join(members, config); }));
}

PyReceived dispatch(const PyExchange& self, const DispatchObjects& objects) {
  const Turn turn(self);
  State& state = *turn;
  receive_dropped(state);
  DispatchInput input;
  read_into(state, objects, input);
  Received received;
  check(without_gil([&] { return state.exchange.dispatch(input.args, received); }));
  return received_of(state, std::move(received), input);
}

PyOperation dispatch_send(const PyExchange& self, const DispatchObjects& objects) {
  const Turn turn(self);
  State& state = *turn;
  receive_dropped(state);
  auto half = std::make_shared<Half>();
  read_into(state, objects, half->dispatch);
  check(without_gil(
      [&] { return state.exchange.dispatch_send(half->dispatch.args, half->operation); }));
  FERRY_CHECK(half->combine.get(), ==, nullptr);
  half->dispatch.kept.clear();  // the rows have been read
  state.sent.push_back(half);
  return {self, std::move(half)};
}

nb::object combine(const PyExchange& self, const CombineObjects& objects) {
  const Turn turn(self);
  State& state = *turn;
  receive_dropped(state);
  CombineInput input;
  read_into(state, objects, input);
  check(without_gil([&] { return state.exchange.combine(input.args); }));
  return input.out;
}

PyOperation combine_send(const PyExchange& self, const CombineObjects& objects) {
  const Turn turn(self);
  State& state = *turn;
  receive_dropped(state);
  auto half = std::make_shared<Half>();
  half->combine = std::make_unique<CombineInput>();
  read_into(state, objects, *half->combine);
  check(without_gil(
      [&] { return state.exchange.combine_send(half->combine->args, half->operation); }));
  state.sent.push_back(half);
  return {self, std::move(half)};
}

nb::object receive(const PyOperation& self) {
  const Turn turn(self.exchange);
  State& state = *turn;
  Received received;
  const Status status = receive_half(state, *self.half, received);
  forget(state, *self.half);
  check(status);
  if (self.half->combine) return self.half->combine->out;
  return nb::cast(received_of(state, std::move(received), self.half->dispatch));
}

PyReceived memory(const PyOperation& self) {
  const Turn turn(self.exchange);
  State& state = *turn;
  Received received;
  check(state.exchange.dispatch_memory(self.half->operation, received));
  return received_of(state, std::move(received), self.half->dispatch);
}

bool ready(const PyOperation& self) {
  const Turn turn(self.exchange);
  return turn->exchange.poll(self.half->operation);
}

nb::object run_layer(const PyExchange& self, const LayerObjects& objects) {
  const Turn turn(self);
  State& state = *turn;
  receive_dropped(state);
  FERRY_CHECK(state.config.get(), !=, nullptr);
  Layer layer(state.exchange);
  const ExchangeConfig& config = state.exchange.config();
  const nb::object none = nb::none();
  DispatchInput input;
  nb::object out;
  void* results = nullptr;
  const auto read = [&] {
    read_dispatch({objects.tokens, objects.topk_ids, objects.topk_weights, none, none, none, none,
                   none, objects.replica_table, objects.active_ranks, none},
                  config, input);
    out = new_array({input.args.tokens.num_rows, config.hidden}, element_of(config.dtype),
                    input.library);
    results = read_tensor(out, "out", true).data;
  };
  read_or_refuse(read, [&](const Status& why) {
    return state.exchange.refuse_dispatch(why, input.args.chosen_ranks());
  });
  state.library = input.library;

  std::exception_ptr raised;
  const int num_local = state.exchange.num_local_experts();
  const Experts experts = [&](std::span<const ExpertRows> ready) {
    const HeldGil held;
    try {
      call_experts(objects.experts, ready, num_local, config, input.library);
    } catch (const nb::python_error& error) {
      raised = std::current_exception();
      throw Error(Code::kInvalidArgument, text_of(error));
    }
  };
  std::vector<Handle> handles;
  const Status status = without_gil([&] {
    return layer.run({.tokens = input.args.tokens,
                      .topk_ids = input.args.topk_ids,
                      .topk_weights = input.args.topk_weights,
                      .out = results,
                      .out_type = config.dtype,
                      .replica_table = input.args.replica_table,
                      .active_ranks = input.args.active_ranks,
                      .two_batches = objects.two_batches,
                      .handles = &handles},
                     experts);
  });
  if (raised && status.code() == Code::kInvalidArgument) std::rethrow_exception(raised);
  check(status);
  nb::list routes;
  for (const Handle& each : handles) {
    state.handle = each;
    routes.append(PyHandle{each, input.library, state.group.get().size()});
  }
  return nb::make_tuple(out, routes);
}

void refuse_dispatch(const PyExchange& self, const std::string& why, nb::handle active_ranks) {
  refuse<&Exchange::refuse_dispatch>(self, why, active_ranks);
}

void refuse_combine(const PyExchange& self, const std::string& why, nb::handle active_ranks) {
  refuse<&Exchange::refuse_combine>(self, why, active_ranks);
}

void skip(const PyExchange& self, const std::string& why, nb::handle active_ranks) {
  check(instead(self, active_ranks,
                [&](Exchange& each, const auto& active) { return each.skip(why, {}, active); }));
}

nb::object empty(const PyExchange& self, std::int64_t num_rows, nb::handle hidden,
                 nb::handle dtype) {
  const Turn turn(self);
  State& state = *turn;
  const ExchangeConfig& config = state.exchange.config();
  const std::int64_t width = hidden.is_none() ? config.hidden : nb::cast<std::int64_t>(hidden);
  Tensor type;
  type.element = dtype.is_none() ? element_of(config.dtype) : element_from_object(dtype);
  OutputRows outputs;
  check(state.exchange.allocate_outputs(num_rows, width, data_type(type, "dtype"), outputs));
  return make_array({.data = outputs.data,
                     .shape = {num_rows, width},
                     .element = type.element,
                     .pin = outputs.pin},
                    state.library.value_or(loaded_library()));
}

bool may_write(const PyExchange& self, nb::handle rows) {
  const Turn turn(self);
  bool may = false;
  check(turn->exchange.may_write(read_tensor(rows, "rows").data, may));
  return may;
}

nb::object stats(const PyExchange& self) {
  const std::shared_ptr<State> state = self.get();
  const ExchangeStats& counts = state->stats;
  return nb::module_::import_("ferry.stats")
      .attr("Stats")(counts.dispatches, counts.combines, counts.rows_sent, counts.rows_received,
                     counts.bytes_sent, counts.bytes_pulled, counts.bytes_copied,
                     counts.window_growths, counts.link_row_bytes, counts.link_bytes,
                     state->dispatch_wait_ns, state->combine_wait_ns, imbalance(state->handle));
}

nb::object window_bytes_of(const PyExchange& self) {
  const Turn turn(self);
  const WindowBytes bytes = turn->exchange.window_bytes();
  return nb::module_::import_("ferry.stats").attr("WindowBytes")(bytes.expected, bytes.worst);
}

nb::dict config_of(const PyExchange& self) { return write_config(self.get()->exchange.config()); }

int num_local_experts(const PyExchange& self) { return self.get()->exchange.num_local_experts(); }

PyGroup group_of(const PyExchange& self) { return self.get()->group; }

}  // namespace ferry::python
