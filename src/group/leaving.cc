#include "group/leaving.h"

#include <mutex>
#include <vector>

namespace ferry::internal {

namespace {

struct Shared {
  std::mutex mutex;
  std::vector<MessageChannel*> channels;  // guarded by mutex
};

// Never destroyed: groups may end after static objects.
Shared& shared() {
  static auto* const made = new Shared;
  return *made;
}

}  // namespace

void share_progress(MessageChannel* messages) {
  const std::lock_guard lock(shared().mutex);
  shared().channels.push_back(messages);
}

void unshare_progress(MessageChannel* messages) noexcept {
  const std::lock_guard lock(shared().mutex);
  std::erase(shared().channels, messages);
}

bool progress_all_here() noexcept {
  const std::lock_guard lock(shared().mutex);
  bool moved = false;
  for (MessageChannel* const messages : shared().channels) moved = messages->progress() || moved;
  return moved;
}

}  // namespace ferry::internal
