// Checks of addresses in this rank's own window.
#include "exchange/arguments/argument_rules.h"
#include "exchange/arguments/refusal.h"

namespace ferry::internal {

namespace {

// True if the rows overlap the window, but do not lie in a buffer that a view keeps alive.
bool released(const Pool& pool, const Rows& rows) noexcept {
  if (rows.num_rows == 0) return false;
  const Pool::Found found = pool.find(rows.data, extent_of(rows));
  return found.in_window && !found.buffer;
}

}  // namespace

Status check_window(const Pool& pool, int rank, const DispatchArgs& args) {
  if (!released(pool, args.tokens)) return {};
  return refuse_with(rank, "dispatch: the tokens lie in a buffer of the window that was released");
}

Status check_window(const Pool& pool, const Setup& setup, const CombineArgs& args,
                    const Route& route) {
  if (released(pool, args.expert_rows))
    return refuse_with(setup.rank,
                       "combine: the expert rows lie in a buffer of the window that was released");
  if (reads_tokens(setup, route) && released(pool, args.dispatched->tokens))
    return refuse_with(
        setup.rank, "combine: dispatched->tokens lie in a buffer of the window that was released");
  for (const Array& array : arrays_written(args, route)) {
    if (array.bytes > 0 && array.data && pool.find(array.data, array.bytes).in_window)
      return refuse_with(setup.rank,
                         "combine: {} lies in the window; results go to the caller's own memory",
                         array.name);
  }
  return {};
}

}  // namespace ferry::internal
