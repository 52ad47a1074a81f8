// While a rank leaves its group, its thread moves the messages of all ranks of this process.
// Another of these ranks may have no thread that moves its messages: its thread may be this one, or
// may wait for this one.
#pragma once

namespace ferry::internal {

class GroupState;

// Between these two calls, ranks of this process that are leaving move the messages of `group`.
void share_progress(GroupState* group);
void unshare_progress(GroupState* group) noexcept;

// Moves the messages of all groups that share_progress() has added. True if a message moved.
bool progress_all_here() noexcept;

}  // namespace ferry::internal
