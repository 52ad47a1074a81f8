#include "group/leaving.h"

#include <mutex>
#include <vector>

#include "group/state.h"

namespace ferry::internal {

namespace {

struct Shared {
  std::mutex mutex;
  std::vector<GroupState*> groups;  // guarded by mutex
};

// Never destroyed: groups may end after static objects.
Shared& shared() {
  static auto* const made = new Shared;
  return *made;
}

}  // namespace

void share_progress(GroupState* group) {
  const std::lock_guard lock(shared().mutex);
  shared().groups.push_back(group);
}

void unshare_progress(GroupState* group) noexcept {
  const std::lock_guard lock(shared().mutex);
  std::erase(shared().groups, group);
}

bool progress_all_here() noexcept {
  const std::lock_guard lock(shared().mutex);
  bool moved = false;
  for (GroupState* const group : shared().groups) moved = group->move_messages() || moved;
  return moved;
}

}  // namespace ferry::internal
