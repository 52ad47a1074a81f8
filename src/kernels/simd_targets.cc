// The SIMD targets that were compiled and that this machine has; tests select one of them.
#include <cstdint>
#include <cstring>
#include <vector>

#include "hwy/highway.h"
#include "kernels/kernels.h"

namespace ferry::internal {
namespace {

// The best target is first. The list is read once, before a target is forced.
const std::vector<std::int64_t>& available_targets() {
  static const std::vector<std::int64_t> targets = hwy::SupportedAndGeneratedTargets();
  return targets;
}

}  // namespace

const char* const* simd_targets(int* num_targets) noexcept {
  static const std::vector<const char*> names = [] {
    std::vector<const char*> list;
    for (const std::int64_t target : available_targets()) list.push_back(hwy::TargetName(target));
    return list;
  }();
  *num_targets = static_cast<int>(names.size());
  return names.data();
}

bool force_simd_target(const char* name) noexcept {
  if (*name == '\0') {
    hwy::SetSupportedTargetsForTest(0);
    return true;
  }
  for (const std::int64_t target : available_targets()) {
    if (std::strcmp(name, hwy::TargetName(target)) != 0) continue;
    hwy::SetSupportedTargetsForTest(target);
    return true;
  }
  return false;
}

}  // namespace ferry::internal
