// Argument rules: limits on the arguments of a dispatch and a combine, as pure functions of the
// exchange's Setup, the active ranks and the arguments. Each returns ok, or a refusal that names
// the value and the limit. They are applied before a rank announces anything.
//   dispatch_rules.cc  tokens, scales      top_k_ids.cc     ids, as a route
//   combine_rules.cc   rows, results       window_rules.cc  addresses in the window
//   overlap_rules.cc   shared memory
#pragma once

#include <array>
#include <cstddef>

#include "exchange/protocol/protocol.h"
#include "exchange/setup/setup.h"
#include "ferry/exchange.h"
#include "memory/pool.h"
#include "routing/active_set.h"
#include "routing/route.h"

namespace ferry::internal {

// Refuses tokens on a rank that is not one of token_ranks. `call`: "dispatch" or "combine".
Status check_token_rank(const Setup& setup, const char* call, std::int64_t num_tokens);
// Checks tokens and scales.
Status check_dispatch(const Setup& setup, const DispatchArgs& args);
// Checks the arguments of a dispatch with a cached handle.
Status check_cached(const Setup& setup, const ActiveSet& active, const DispatchArgs& args);
// For a dispatch without a cached handle, and for the dispatch of a combine without a handle:
// checks the top-k ids, and writes the experts of this rank's tokens to an empty route. The route
// has no slots yet.
Status fill_route(const Setup& setup, const DispatchArgs& args, Route& route);

// Checks the arguments of a combine that can be checked without a route.
Status check_combine(const Setup& setup, const CombineArgs& args);
// Check the handle of a combine, or for a combine without one the number of dispatched tokens
// (CombineArgs::dispatched).
Status check_combine_handle(const Setup& setup, const ActiveSet& active, const CombineArgs& args);
Status check_dispatched(const Setup& setup, const CombineArgs& args);
// Checks the weights, special experts and results of a combine.
Status check_combine_routed(const Setup& setup, const CombineArgs& args, const Route& route);
// Whether a token of this rank has a copy or constant expert, so that the combine reads
// CombineArgs::dispatched->tokens.
bool reads_tokens(const Setup& setup, const Route& route);

struct Array {
  const char* name;  // in messages
  const void* data;
  std::size_t bytes;
};
// out, norm.y, norm.rstd and out_topk_weights.
std::array<Array, 4> arrays_written(const CombineArgs& args, const Route& route);
// Checks that no array that a combine writes overlaps another one, or an input that may be read
// later. Exceptions, in exactly the same memory: out or norm.y may replace a bias, the shared
// output or the residual; out may replace dispatched->tokens, and out_topk_weights topk_weights.
Status check_overlaps(const Setup& setup, const CombineArgs& args, const Route& route);

// Refuses a NaN among the weights [T, K] of a call, for entries that are sent.
Status check_weights_are_numbers(const Setup& setup, const char* call, const float* weights,
                                 const Route& route);

// Check addresses in this rank's window: rows that the caller gives must not lie in a released
// buffer, and results of a combine must not lie in the window at all.
Status check_window(const Pool& pool, int rank, const DispatchArgs& args);
Status check_window(const Pool& pool, const Setup& setup, const CombineArgs& args,
                    const Route& route);

}  // namespace ferry::internal
