// The calls of an Exchange from Python. They read arguments with the GIL and move rows without it.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>

#include "core/arguments.h"
#include "core/group.h"
#include "core/results.h"
#include "core/turn.h"

namespace ferry::python {

struct State;
struct Half;

struct PyExchange : Closable<State> {
  using Closable::Closable;
};

// The arguments of a layer, not yet read; `experts` is that of call_experts().
struct LayerObjects {
  nb::handle tokens, topk_ids, topk_weights, experts;
  bool two_batches = false;
  nb::handle replica_table, active_ranks;
};

// An operation between its halves. The memory that it writes stays until the receive half has run.
// If this object is destroyed before, the next call of the exchange runs the receive half.
struct PyOperation {
  PyExchange exchange;
  std::shared_ptr<Half> half;
};

PyExchange make_exchange(const PyGroup& group, const nb::args& args, const nb::kwargs& keywords);
PyExchange join_exchange(const PyGroup& group, const nb::kwargs& keywords);

PyReceived dispatch(const PyExchange& self, const DispatchObjects& objects);
PyOperation dispatch_send(const PyExchange& self, const DispatchObjects& objects);
nb::object combine(const PyExchange& self, const CombineObjects& objects);
PyOperation combine_send(const PyExchange& self, const CombineObjects& objects);
nb::object receive(const PyOperation& self);
bool ready(const PyOperation& self);
PyReceived memory(const PyOperation& self);

// ferry::Layer without gradients; returns the results and the handles.
nb::object run_layer(const PyExchange& self, const LayerObjects& objects);

void refuse_dispatch(const PyExchange& self, const std::string& why, nb::handle active_ranks);
void refuse_combine(const PyExchange& self, const std::string& why, nb::handle active_ranks);
void skip(const PyExchange& self, const std::string& why, nb::handle active_ranks);

nb::object empty(const PyExchange& self, std::int64_t num_rows, nb::handle hidden,
                 nb::handle dtype);
bool may_write(const PyExchange& self, nb::handle rows);
nb::object stats(const PyExchange& self);
nb::object window_bytes_of(const PyExchange& self);
nb::dict config_of(const PyExchange& self);
int num_local_experts(const PyExchange& self);
PyGroup group_of(const PyExchange& self);

}  // namespace ferry::python
