// What a rank does for others while it leaves: it moves the messages of all ranks of this process.
// The thread that would do so for another rank may be the one that waits here, or wait for it.
// Called by between_nodes.cc and state.cc.
#pragma once

#include "network/message_channel.h"

namespace ferry::internal {

// Between these two, `messages` is moved by ranks of this process that leave.
void share_progress(MessageChannel* messages);
void unshare_progress(MessageChannel* messages) noexcept;

// True when something moved.
bool progress_all_here() noexcept;

}  // namespace ferry::internal
