// The arguments of dispatch and combine: from Python objects to the structs of the engine. The
// structs here keep the tensors alive.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <vector>

#include "core/libraries.h"
#include "core/tensor.h"
#include "ferry/exchange.h"

namespace ferry::python {

// The keyword arguments of Exchange.dispatch, not yet read.
struct DispatchObjects {
  nb::handle tokens, topk_ids, topk_weights, handle, token_mask, topk_mask, scales, token_scales,
      replica_table, active_ranks, deadline;
};

struct DispatchInput {
  DispatchArgs args{.active_ranks = kUnknownRanks};  // until active_ranks is read
  std::vector<nb::object> kept;
  std::vector<int> active_ranks;
  Library library = Library::kNone;
  Element scale_element = Element::kOther;  // of token_scales
};

// Throws Error(kInvalidArgument) that names an argument and its fault.
void read_dispatch(const DispatchObjects& objects, const ExchangeConfig& config,
                   DispatchInput& input);

// The keyword arguments of Exchange.combine, not yet read.
struct CombineObjects {
  nb::handle expert_rows, handle, topk_weights, bias, row_weights, out, out_dtype, out_topk_weights,
      dispatched, constants, shared_output, residual, gamma, epsilon, y, rstd, partials, in_place,
      deadline;
};

struct CombineInput {
  CombineArgs args;
  std::vector<nb::object> kept;
  std::unique_ptr<DispatchInput> dispatched;
  nb::object out;  // the array that combine writes and returns

  // The ranks to which a refusal is sent, from the arguments that were read so far.
  std::span<const int> chosen_ranks() const {
    return args.handle || args.dispatched ? args.chosen_ranks() : kUnknownRanks;
  }
};

void read_combine(const CombineObjects& objects, const ExchangeConfig& config, CombineInput& input);

// Reads seconds; None gives 0, which stands for the deadline of the group.
std::chrono::nanoseconds read_deadline(nb::handle deadline);

}  // namespace ferry::python
