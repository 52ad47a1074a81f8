// Exchange as Python sees it: reads arguments with the GIL, moves rows without it.
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <tuple>

#include "core/arguments.h"
#include "core/arrays.h"
#include "core/config.h"
#include "core/docs.h"
#include "core/errors.h"
#include "core/group.h"
#include "core/results.h"
#include "ferry/exchange.h"

namespace ferry::python {

namespace {

using nb::arg;

struct State {
  Exchange exchange;
  PyGroup group;  // outlives the exchange
  std::atomic<bool> busy{false};
  Library library = Library::kNone;  // of the last dispatch's tokens
  Handle last = {};
};

struct PyExchange {
  std::shared_ptr<Kept<std::unique_ptr<State>>> kept;

  State& get() const {
    if (!kept->mine())
      throw Error(Code::kClosed, "this process was forked after the exchange was made");
    if (!**kept) throw Error(Code::kClosed, "this exchange was closed");
    return ***kept;
  }
};

// One caller at a time; taken while the GIL is held.
class Turn {
 public:
  explicit Turn(State& state) : state_(state) {
    if (state.busy.exchange(true, std::memory_order_acquire)) {
      throw Error(Code::kInvalidArgument,
                  "another thread is in a call of this exchange: one caller at a time (or one "
                  "exchange per thread)");
    }
  }
  ~Turn() { state_.busy.store(false, std::memory_order_release); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  State& state_;
};

struct PyOperation {
  PyExchange exchange;
  Operation operation;
  DispatchInput dispatch;
  std::unique_ptr<CombineInput> combine;  // of a combine
};

// Reads arguments; what is refused here is refused on all ranks.
template <typename Read, typename Refuse>
void read_or_refuse(const Read& read, const Refuse& refuse) {
  Status status;
  try {
    return read();
  } catch (const Error& error) {
    status = {error.code(), error.what()};
  } catch (const nb::python_error& error) {
    const Status why(Code::kInvalidArgument, "its arguments raised an exception in Python");
    static_cast<void>(without_gil([&] { return refuse(why); }));
    throw;
  } catch (const nb::cast_error&) {
    status = {Code::kInvalidArgument, "an argument is of the wrong Python type"};
  }
  check(without_gil([&] { return refuse(status); }));
}

PyExchange make_exchange(const PyGroup& group, const nb::kwargs& keywords) {
  const ExchangeConfig config = read_config(keywords);
  Group& members = group.get();
  auto state = std::make_unique<State>();
  state->group = group;
  state->exchange = without_gil([&] { return Exchange(members, config); });
  return {std::make_shared<Kept<std::unique_ptr<State>>>(std::move(state))};
}

void read_into(State& state, const DispatchObjects& objects, DispatchInput& input) {
  read_or_refuse([&] { read_dispatch(objects, state.exchange.config(), input); },
                 [&](const Status& why) {
                   return state.exchange.refuse_dispatch(why, input.args.active_ranks);
                 });
  state.library = input.library;
}

void read_into(State& state, const CombineObjects& objects, CombineInput& input) {
  read_or_refuse([&] { read_combine(objects, state.exchange.config(), input); },
                 [&](const Status& why) {
                   return state.exchange.refuse_combine(
                       why, input.args.dispatched ? input.args.dispatched->active_ranks
                                                  : std::span<const int>{});
                 });
}

PyReceived received_of(State& state, Received&& received, const DispatchInput& input) {
  PyReceived result;
  state.last = received.handle;
  **result.kept = std::move(received);
  result.library = input.library;
  result.config = state.exchange.config();
  result.scale_element = input.scale_element;
  result.num_ranks = state.group.get().size();
  return result;
}

PyReceived dispatch(const PyExchange& self, const DispatchObjects& objects) {
  State& state = self.get();
  const Turn turn(state);
  DispatchInput input;
  read_into(state, objects, input);
  Received received;
  check(without_gil([&] { return state.exchange.dispatch(input.args, received); }));
  return received_of(state, std::move(received), input);
}

PyOperation dispatch_send(const PyExchange& self, const DispatchObjects& objects) {
  State& state = self.get();
  const Turn turn(state);
  PyOperation operation{.exchange = self, .operation = {}, .dispatch = {}, .combine = {}};
  read_into(state, objects, operation.dispatch);
  check(without_gil(
      [&] { return state.exchange.dispatch_send(operation.dispatch.args, operation.operation); }));
  operation.dispatch.tensors.clear();  // the rows have been read
  return operation;
}

nb::object combine(const PyExchange& self, const CombineObjects& objects) {
  State& state = self.get();
  const Turn turn(state);
  CombineInput input;
  read_into(state, objects, input);
  check(without_gil([&] { return state.exchange.combine(input.args); }));
  return input.out;
}

PyOperation combine_send(const PyExchange& self, const CombineObjects& objects) {
  State& state = self.get();
  const Turn turn(state);
  PyOperation operation{.exchange = self,
                        .operation = {},
                        .dispatch = {},
                        .combine = std::make_unique<CombineInput>()};
  read_into(state, objects, *operation.combine);
  check(without_gil(
      [&] { return state.exchange.combine_send(operation.combine->args, operation.operation); }));
  return operation;
}

nb::object receive(const PyOperation& self) {
  State& state = self.exchange.get();
  const Turn turn(state);
  if (self.combine) {
    check(without_gil([&] { return state.exchange.combine_recv(self.operation); }));
    return self.combine->out;
  }
  Received received;
  check(without_gil([&] { return state.exchange.dispatch_recv(self.operation, received); }));
  return nb::cast(received_of(state, std::move(received), self.dispatch));
}

template <auto call>
bool refuse(const PyExchange& self, const std::string& why, nb::handle active_ranks) {
  State& state = self.get();
  const Turn turn(state);
  std::vector<int> active;
  if (!active_ranks.is_none()) active = nb::cast<std::vector<int>>(active_ranks);
  const Status status(Code::kInvalidArgument, why);
  bool by_all = false;
  const Status done = without_gil([&] { return (state.exchange.*call)(status, active, &by_all); });
  if (done.code() != Code::kInvalidArgument) check(done);  // what broke, instead of `why`
  return by_all;
}

nb::object empty(const PyExchange& self, std::int64_t num_rows, nb::handle hidden,
                 nb::handle dtype) {
  State& state = self.get();
  const Turn turn(state);
  const ExchangeConfig& config = state.exchange.config();
  const std::int64_t width = hidden.is_none() ? config.hidden : nb::cast<std::int64_t>(hidden);
  Tensor type;
  type.element = dtype.is_none() ? element_of(config.dtype) : element_from_object(dtype);
  OutputRows outputs;
  check(state.exchange.allocate_outputs(num_rows, width, data_type(type, "dtype"), outputs));
  return make_array({.data = outputs.data,
                     .shape = {static_cast<std::size_t>(num_rows), static_cast<std::size_t>(width)},
                     .element = type.element,
                     .pin = outputs.pin},
                    state.library);
}

double imbalance(const Handle& handle) {
  if (!handle || handle.tokens_per_expert().empty()) return 1;
  std::int64_t most = 0, all = 0;
  for (const std::int64_t count : handle.tokens_per_expert()) {
    most = std::max(most, count);
    all += count;
  }
  const auto experts = static_cast<double>(handle.tokens_per_expert().size());
  return all ? static_cast<double>(most) * experts / static_cast<double>(all) : 1;
}

nb::object stats(const PyExchange& self) {
  State& state = self.get();
  const ExchangeStats stats = state.exchange.stats();
  const auto waits = [](const OperationTimes& times) {
    nb::list list;
    for (const std::int64_t wait : times.wait_ns) list.append(wait);
    return list;
  };
  return nb::module_::import_("ferry.stats")
      .attr("Stats")(stats.dispatches, stats.combines, stats.rows_sent, stats.rows_received,
                     stats.bytes_sent, stats.bytes_pulled, stats.bytes_copied, stats.window_growths,
                     waits(state.exchange.last_dispatch_times()),
                     waits(state.exchange.last_combine_times()), imbalance(state.last));
}

// A parameter that may be left out, and be None.
auto optional(const char* name) { return arg(name).none() = nb::none(); }

auto dispatch_parameters() {
  return std::tuple(arg("tokens").none(), optional("topk_ids"), optional("topk_weights"),
                    nb::kw_only(), optional("handle"), optional("token_mask"),
                    optional("topk_mask"), optional("scales"), optional("token_scales"),
                    optional("replica_table"), optional("active_ranks"), optional("deadline"));
}

auto combine_parameters() {
  return std::tuple(arg("expert_rows").none(), optional("handle"), optional("topk_weights"),
                    nb::kw_only(), optional("bias"), optional("row_weights"), optional("out"),
                    optional("out_dtype"), optional("out_topk_weights"), optional("dispatched"),
                    optional("constants"), optional("shared_output"), optional("residual"),
                    optional("gamma"), arg("epsilon") = 1e-6, optional("y"), optional("rstd"),
                    arg("partials") = "none", arg("in_place") = true, optional("deadline"));
}

using O = nb::handle;

template <auto call>
auto with_dispatch_objects() {
  return [](const PyExchange& self, O tokens, O topk_ids, O topk_weights, O handle, O token_mask,
            O topk_mask, O scales, O token_scales, O replica_table, O active_ranks, O deadline) {
    return call(self, {tokens, topk_ids, topk_weights, handle, token_mask, topk_mask, scales,
                       token_scales, replica_table, active_ranks, deadline});
  };
}

template <auto call>
auto with_combine_objects() {
  return [](const PyExchange& self, O expert_rows, O handle, O topk_weights, O bias, O row_weights,
            O out, O out_dtype, O out_topk_weights, O dispatched, O constants, O shared_output,
            O residual, O gamma, O epsilon, O y, O rstd, O partials, O in_place, O deadline) {
    return call(self, {expert_rows, handle, topk_weights, bias, row_weights, out, out_dtype,
                       out_topk_weights, dispatched, constants, shared_output, residual, gamma,
                       epsilon, y, rstd, partials, in_place, deadline});
  };
}

template <typename Function, typename Parameters>
void define(nb::class_<PyExchange>& type, const char* name, Function function,
            Parameters parameters, const char* doc) {
  std::apply([&](auto&&... each) { type.def(name, function, each..., doc); },
             std::move(parameters));
}

}  // namespace

void bind_exchange(nb::module_& module) {
  bind_results(module);
  nb::class_<PyOperation>(module, "Operation", "A dispatch or combine between its halves.")
      .def(
          "ready",
          [](const PyOperation& self) { return self.exchange.get().exchange.poll(self.operation); },
          "True when recv() would not wait.")
      .def("recv", &receive,
           "The second half: ferry.Received of a dispatch, the result of a combine.");
  nb::class_<PyExchange> type(
      module, "Exchange",
      "One dispatch/combine pair and its window of memory. Made by group.exchange(...). All "
      "calls but empty, stats and close are collective: the same order on every rank.");
  define(type, "dispatch", with_dispatch_objects<dispatch>(), dispatch_parameters(), kDispatchDoc);
  define(type, "dispatch_send", with_dispatch_objects<dispatch_send>(), dispatch_parameters(),
         "The first half of dispatch: arguments as there; the tokens may change once it returned. "
         "Returns a ferry.Operation.");
  define(type, "combine", with_combine_objects<combine>(), combine_parameters(), kCombineDoc);
  define(type, "combine_send", with_combine_objects<combine_send>(), combine_parameters(),
         "The first half of combine: arguments as there, not to be changed until recv(). Returns a "
         "ferry.Operation.");
  type.def("refuse_dispatch", &refuse<&Exchange::refuse_dispatch>, arg("why"),
           optional("active_ranks"),
           "Takes the place of a dispatch that this rank will not make: the others raise "
           "ferry.PeerRejected. Returns "
           "True when every rank did so, and nobody is in the operation.")
      .def("refuse_combine", &refuse<&Exchange::refuse_combine>, arg("why"),
           optional("active_ranks"), "The same for a combine.")
      .def_prop_ro(
          "config",
          [](const PyExchange& self) { return write_config(self.get().exchange.config()); },
          "The settings as a dict, by the keywords of group.exchange, defaults filled in.")
      .def("empty", &empty, arg("num_rows"), optional("hidden"), optional("dtype"),
           "Memory of the window for expert outputs [num_rows, hidden], so that combine copies "
           "nothing; an array of the "
           "library of the last dispatch's tokens. Local.")
      .def("stats", &stats,
           "Counts since creation, and the waits of the last operations: ferry.Stats.")
      .def_prop_ro(
          "window_bytes",
          [](const PyExchange& self) {
            const WindowBytes bytes = self.get().exchange.window_bytes();
            return nb::module_::import_("ferry.stats")
                .attr("WindowBytes")(bytes.expected, bytes.worst);
          },
          "(expected: committed now, worst: reserved), bytes of shared memory of this rank.")
      .def_prop_ro(
          "num_local_experts",
          [](const PyExchange& self) { return self.get().exchange.num_local_experts(); },
          "Experts of this rank, L.")
      .def_prop_ro(
          "group", [](const PyExchange& self) { return self.get().group; },
          "The group it was made of.")
      .def(
          "close",
          [](const PyExchange& self) {
            if (self.kept->mine()) (*self.kept)->reset();
          },
          "Gives the window back once no array lies in it. Local.");
  nb::class_<PyGroup> group = nb::borrow<nb::class_<PyGroup>>(module.attr("Group"));
  group.def("exchange", &make_exchange, arg("config"),
            "Makes an exchange; keywords as in docs/python.md. Collective; every rank gives the "
            "same settings.");
}

}  // namespace ferry::python
