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

Status check_window(const Pool& pool, int rank, const CombineArgs& args, const Route& route) {
  if (released(pool, args.expert_rows))
    return refuse_with(rank,
                       "combine: the expert rows lie in a buffer of the window that was released");
  const Rows out{args.out, route.num_tokens, args.expert_rows.hidden, args.out_dtype,
                 args.out_pitch_bytes};
  if (out.num_rows > 0 && pool.find(out.data, extent_of(out)).in_window)
    return refuse_with(rank,
                       "combine: out lies in the window; results go to the caller's own memory");
  return {};
}

}  // namespace ferry::internal
