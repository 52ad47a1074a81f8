// What a rank does for others while it leaves: it moves the messages of all ranks of this process.
// The thread that would do so for another rank may be the one that waits here, or wait for it.
#pragma once

namespace ferry::internal {

class GroupState;

// Between these two, ranks of this process that leave move the messages of `group`.
void share_progress(GroupState* group);
void unshare_progress(GroupState* group) noexcept;

// True when something moved.
bool progress_all_here() noexcept;

}  // namespace ferry::internal
