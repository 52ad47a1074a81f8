// ferry.Exchange and ferry.Operation: names, parameters and docstrings of the calls in calls.cc.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "base/names.h"
#include "core/bindings.h"
#include "core/calls.h"
#include "core/docs.h"
#include "core/results.h"

namespace ferry::python {

namespace {

using nb::arg;

// A parameter that may be omitted or None.
auto optional(const char* name) { return arg(name).none() = nb::none(); }

auto dispatch_parameters() {
  return std::tuple(arg("tokens").none(), optional("topk_ids"), optional("topk_weights"),
                    nb::kw_only(), optional("handle"), optional("token_mask"),
                    optional("topk_mask"), optional("scales"), optional("token_scales"),
                    optional("replica_table"), optional("active_ranks"), optional("deadline"));
}

// The signatures for type checkers. Results are arrays of the same library as the arguments.
constexpr const char* kDispatchTypes =
    "(self, tokens: Array | None, topk_ids: AnyArray | None = None, "
    "topk_weights: AnyArray | None = None, *, "
    "handle: Handle[Array] | None = None, "
    "token_mask: AnyArray | None = None, "
    "topk_mask: AnyArray | None = None, scales: AnyArray | None = None, "
    "token_scales: AnyArray | None = None, "
    "replica_table: AnyArray | None = None, "
    "active_ranks: collections.abc.Sequence[int] | None = None, deadline: float | None = None)";

constexpr const char* kCombineTypes =
    "(self, expert_rows: Array | None, handle: Handle[typing.Any] | None = None, "
    "topk_weights: AnyArray | None = None, *, "
    "bias: AnyArray | collections.abc.Sequence[AnyArray] | None = None, "
    "row_weights: AnyArray | None = None, out: Array | None = None, "
    "out_dtype: typing.Any = None, out_topk_weights: AnyArray | None = None, "
    "dispatched: dict[str, typing.Any] | None = None, "
    "constants: collections.abc.Sequence[AnyArray] | None = None, "
    "shared_output: AnyArray | None = None, "
    "residual: AnyArray | None = None, gamma: AnyArray | None = None, "
    "epsilon: float | None = 1e-06, y: AnyArray | None = None, "
    "rstd: AnyArray | None = None, "
    "partials: typing.Literal['none', 'per_rank'] | None = 'none', "
    "in_place: bool | None = True, deadline: float | None = None)";

auto combine_parameters() {
  return std::tuple(arg("expert_rows").none(), optional("handle"), optional("topk_weights"),
                    nb::kw_only(), optional("bias"), optional("row_weights"), optional("out"),
                    optional("out_dtype"), optional("out_topk_weights"), optional("dispatched"),
                    optional("constants"), optional("shared_output"), optional("residual"),
                    optional("gamma"), arg("epsilon").none() = 1e-6, optional("y"),
                    optional("rstd"), arg("partials").none() = "none",
                    arg("in_place").none() = true, optional("deadline"));
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

// The parameters of a call.
struct Named {
  std::vector<std::string> names;
  std::size_t num_positional = 0;

  template <typename Parameter>
  void add(const Parameter& parameter) {
    names.emplace_back(parameter.name_);
  }
  void add(const nb::kw_only&) { num_positional = names.size(); }
};

// The reason why the arguments do not fit the call, whose first parameter has no default.
std::string misfit(const Named& named, const nb::args& args, const nb::kwargs& keywords) {
  if (args.size() > named.num_positional)
    return fmt::format("takes at most {} arguments without a keyword, got {}", named.num_positional,
                       args.size());
  for (const auto& [key, value] : keywords) {
    const auto name = nb::cast<std::string>(key);
    const auto found = std::find(named.names.begin(), named.names.end(), name);
    if (found == named.names.end())
      return fmt::format("has no argument '{}'{}", name, internal::nearest_name(name, named.names));
    if (found < named.names.begin() + static_cast<std::ptrdiff_t>(args.size()))
      return fmt::format("got '{}' twice", name);
  }
  return fmt::format("needs '{}'", named.names.front());
}

// The ranks that take part in a call whose arguments do not fit: those that it names, or those of a
// handle among its arguments, also under a wrong name. None: all.
nb::object chosen_ranks(const nb::args& args, const nb::kwargs& keywords) {
  if (keywords.contains("active_ranks")) return keywords["active_ranks"];
  nb::list values(args);
  for (const auto& [name, value] : keywords) values.append(value);
  for (const nb::handle value : values) {
    if (nb::isinstance<PyHandle>(value)) return value.attr("active_ranks");
  }
  if (!keywords.contains("dispatched")) return nb::none();
  const nb::object dispatched = keywords["dispatched"];
  return nb::isinstance<nb::dict>(dispatched) ? dispatched.attr("get")("active_ranks") : nb::none();
}

// The parts of a signature as help() shows it: the types, the result and the docstring.
struct Shown {
  const char* types;
  const char* result;
  const char* doc;
};

// Binds a call, and an overload that takes any other arguments, such as an unknown keyword or none.
// The other ranks wait for the call, so the overload refuses it on all ranks.
template <typename Function, typename Parameters, typename Refuse>
void define(nb::class_<PyExchange>& type, const char* name, Function function,
            Parameters parameters, Refuse refuse, const Shown& shown) {
  const std::string signature = fmt::format("def {}{} -> {}", name, shown.types, shown.result);
  Named named;
  std::apply(
      [&](auto&&... each) {
        (named.add(each), ...);
        type.def(name, function, each..., nb::sig(signature.c_str()), shown.doc);
      },
      std::move(parameters));
  type.def(
      name,
      [name, named, refuse](const PyExchange& self, const nb::args& args,
                            const nb::kwargs& keywords) -> nb::object {
        const std::string why = fmt::format("{}() {}", name, misfit(named, args, keywords));
        refuse(self, why, chosen_ranks(args, keywords));
        throw nb::type_error(why.c_str());
      },
      nb::sig(signature.c_str()));
}

// The call of ferry.moe.
void bind_layer(nb::class_<PyExchange>& type) {
  type.def(
      "_run_layer",
      [](const PyExchange& self, O tokens, O topk_ids, O topk_weights, O experts, bool two_batches,
         O replica_table, O active_ranks) {
        return run_layer(self, {tokens, topk_ids, topk_weights, experts, two_batches, replica_table,
                                active_ranks});
      },
      arg("tokens").none(), arg("topk_ids").none(), arg("topk_weights").none(),
      arg("experts").none(), arg("two_batches"), arg("replica_table").none(),
      arg("active_ranks").none());
}

// Rows of the window for expert outputs.
void bind_outputs(nb::class_<PyExchange>& type) {
  type.def("empty", &empty, arg("num_rows"), optional("hidden"), optional("dtype"),
           nb::sig("def empty(self, num_rows: int, hidden: int | None = None, "
                   "dtype: typing.Any = None) -> typing.Any"),
           "Memory of the window for expert outputs [num_rows, hidden], which combine does not "
           "copy; an array of the library of the last dispatch's tokens. Local; ferry.Capacity "
           "when too many views are alive.")
      .def(
          "may_write", &may_write, arg("rows"),
          nb::sig("def may_write(self, rows: AnyArray) -> bool"),
          "True when no rank reads, for a combine, the rows of the window in which this array "
          "lies, "
          "so that they may be written again; True for any other memory. Local, and does not wait; "
          "a loop that waits for True may not end: docs/python_reference.md, Lifetimes.");
}

void bind_to_group(nb::module_& module) {
  nb::class_<PyGroup> group = nb::borrow<nb::class_<PyGroup>>(module.attr("Group"));
  group.def("exchange", &make_exchange, arg("args"), arg("config"),
            nb::sig("def exchange(self, **config: "
                    "typing_extensions.Unpack[Settings]) -> Exchange"),
            "Makes an exchange; keywords as in docs/python_reference.md. Collective: every rank "
            "gives the same settings. Where a rank refuses its settings the others raise "
            "ferry.PeerRejected.");
  group.def("join_exchange", &join_exchange, arg("config"),
            nb::sig("def join_exchange(self, **config: "
                    "typing_extensions.Unpack[Settings]) -> Exchange"),
            "On a rank that took the place of a lost one (ferry.init(slot=)), in the view that "
            "began with it: joins the first exchange with these settings that all members had made "
            "before and that this rank has not joined. Local: the members go on with theirs, and "
            "wait for this rank in their next operation. Raises ferry.InvalidArgument if there is "
            "none; it names the settings that differ.");
}

}  // namespace

void bind_exchange(nb::module_& module) {
  nb::class_<PyOperation>(
      module, "Operation", nb::is_generic(), nb::sig("class Operation(typing.Generic[Result])"),
      "A dispatch or combine between its halves. Receive each: the next call of the exchange "
      "receives an operation that was dropped, and its result is lost.")
      .def("ready", &ready,
           "True when recv() would not wait, except that a combine between nodes may wait for the "
           "sums that it then requests.")
      .def(
          "memory", &memory, nb::sig("def memory(self, /) -> Received[typing.Any]"),
          "For a dispatch, before recv(): a ferry.Received with arrays at the address of the rows, "
          "which are there after recv(). ferry.Capacity when too many views are alive, so that "
          "recv() will copy the rows.")
      .def("recv", &receive, nb::sig("def recv(self, /) -> Result"),
           "The second half: ferry.Received of a dispatch, the result of a combine.");
  nb::class_<PyExchange> type(
      module, "Exchange",
      "One dispatch/combine pair and its window of memory, from group.exchange(...). All calls "
      "except empty, may_write, stats and close are collective: every rank makes them in the same "
      "order.");
  define(type, "dispatch", with_dispatch_objects<dispatch>(), dispatch_parameters(),
         &refuse_dispatch, {kDispatchTypes, "Received[Array]", kDispatchDoc});
  define(type, "dispatch_send", with_dispatch_objects<dispatch_send>(), dispatch_parameters(),
         &refuse_dispatch,
         {kDispatchTypes, "Operation[Received[Array]]",
          "The first half of dispatch, with the same arguments; the tokens may change once it has "
          "returned. Returns a ferry.Operation."});
  define(type, "combine", with_combine_objects<combine>(), combine_parameters(), &refuse_combine,
         {kCombineTypes, "Array", kCombineDoc});
  define(type, "combine_send", with_combine_objects<combine_send>(), combine_parameters(),
         &refuse_combine,
         {kCombineTypes, "Operation[Array]",
          "The first half of combine, with the same arguments. They must not change until recv(), "
          "except expert rows that were copied. Returns a ferry.Operation."});
  bind_layer(type);
  bind_outputs(type);
  type.def("refuse_dispatch", &refuse_dispatch, arg("why"), optional("active_ranks"),
           nb::sig("def refuse_dispatch(self, why: str, active_ranks: "
                   "collections.abc.Sequence[int] | None = None) -> None"),
           "Replaces a dispatch that this rank will not make: the other ranks raise "
           "ferry.PeerRejected.")
      .def("refuse_combine", &refuse_combine, arg("why"), optional("active_ranks"),
           nb::sig("def refuse_combine(self, why: str, active_ranks: "
                   "collections.abc.Sequence[int] | None = None) -> None"),
           "Replaces a combine, as refuse_dispatch replaces a dispatch.")
      .def("skip", &skip, arg("why"), optional("active_ranks"),
           nb::sig("def skip(self, why: str, active_ranks: "
                   "collections.abc.Sequence[int] | None = None) -> None"),
           "Replaces a dispatch or combine that this rank makes in another exchange. Raises "
           "ferry.Mismatch unless all ranks skip; ranks that make a call here raise "
           "ferry.PeerRejected.")
      .def("stats", &stats, nb::sig("def stats(self) -> Stats"),
           "Counts since creation, and the waits of the last operations: ferry.Stats. Local; any "
           "thread may call it.")
      .def(
          "close", [](const PyExchange& self) { self.close(); },
          "Releases the window once no array lies in it. Local.")
      .def_prop_ro("config", &config_of, nb::sig("def config(self, /) -> Settings"),
                   "The settings as a dict, by the keywords of group.exchange, defaults filled in.")
      .def_prop_ro(
          "window_bytes", &window_bytes_of, nb::sig("def window_bytes(self, /) -> WindowBytes"),
          "(expected: committed now, worst: reserved), bytes of shared memory of this rank.")
      .def_prop_ro("num_local_experts", &num_local_experts, "Experts of this rank, L.")
      .def_prop_ro("group", &group_of, "The group of the exchange.");
  bind_to_group(module);
}

}  // namespace ferry::python
