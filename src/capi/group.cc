// ferry_group_*, ferry_run_threads and the caller's allocator.
#include "ferry/group.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "base/check.h"
#include "capi/boundary.h"
#include "capi/convert.h"
#include "capi/objects.h"

namespace ferry::capi {

Allocator::Allocator() noexcept
    : allocate_([](std::size_t bytes, void*) { return std::malloc(bytes); }),
      release_([](void* memory, void*) { std::free(memory); }) {}

Allocator::Allocator(const ferry_allocator& given)
    : allocate_(given.allocate), release_(given.release), context_(given.context) {
  if (!allocate_) refuse_null("ferry_allocator: allocate");
  if (!release_) refuse_null("ferry_allocator: release");
}

void* Allocator::allocate(std::size_t bytes) const {
  void* memory = allocate_(bytes, context_);
  if (!memory)
    throw Error(Code::kSystem, fmt::format("the allocator returned no memory for {} bytes", bytes));
  return memory;
}

namespace {

// The memory of the object is allocated first, so that no rank joins and then fails.
template <typename Join>
ferry_code make_group(const ferry_group_options* options, ferry_group** group, const Join& join) {
  return guarded([&] {
    required(group, "group") = nullptr;
    const GroupSettings settings = to_group_settings(options);
    Owned<ferry_group> made(make<ferry_group>(settings.allocator));
    made->group = join(settings.options);
    *group = made.release();
  });
}

using Body = ferry_code (*)(ferry_group* group, void* context);

void run_body(Body body, void* context, ferry_group member) {
  const int rank = member.group.rank();
  const ferry_code code = body(&member, context);
  member.group.destroy();
  if (code == FERRY_OK) return;
  throw Error(static_cast<Code>(code),
              fmt::format("rank {} returned {}: {}", rank, ferry_code_name(code),
                          ferry_last_error_message()));
}

}  // namespace
}  // namespace ferry::capi

using namespace ferry::capi;
using ferry::Group;
using ferry::GroupOptions;

ferry_code ferry_group_from_environment(const ferry_group_options* options, ferry_group** group) {
  return make_group(options, group,
                    [](const GroupOptions& given) { return Group::from_environment(given); });
}

ferry_code ferry_group_connect(const char* address, int32_t rank, int32_t size,
                               const ferry_group_options* options, ferry_group** group) {
  return make_group(options, group, [&](const GroupOptions& given) {
    return Group::connect(&required(address, "address"), rank, size, given);
  });
}

ferry_code ferry_group_from_all_gather(int32_t rank, int32_t size,
                                       const ferry_all_gather* all_gather,
                                       const ferry_group_options* options, ferry_group** group) {
  return make_group(options, group, [&](const GroupOptions& given) {
    return Group::from_all_gather(rank, size, to_all_gather(all_gather), given);
  });
}

ferry_code ferry_group_threads(int32_t size, const ferry_group_options* options,
                               ferry_group** groups) {
  return guarded([&] {
    required(groups, "groups");
    for (int32_t i = 0; i < size; ++i) groups[i] = nullptr;
    const GroupSettings settings = to_group_settings(options);
    std::vector<Owned<ferry_group>> made;
    for (Group& group : Group::threads(size, settings.options))
      made.push_back(Owned<ferry_group>(make<ferry_group>(settings.allocator, std::move(group))));
    FERRY_CHECK(std::ssize(made), ==, size);
    for (int32_t i = 0; i < size; ++i) groups[i] = made[i].release();
  });
}

ferry_code ferry_run_threads(int32_t size, ferry_code (*body)(ferry_group* group, void* context),
                             void* context, const ferry_group_options* options) {
  return guarded([&] {
    if (!body) refuse_null("body");
    const GroupSettings settings = to_group_settings(options);
    ferry::run_threads(
        size,
        [&](Group group) {
          run_body(body, context, {settings.allocator, std::move(group)});
        },
        settings.options);
  });
}

void ferry_group_destroy(ferry_group* group) {
  if (group) group->group.destroy();
  destroy(group);
}

int32_t ferry_group_rank(const ferry_group* group) { return group ? group->group.rank() : -1; }
int32_t ferry_group_size(const ferry_group* group) { return group ? group->group.size() : -1; }

const char* ferry_group_launcher(const ferry_group* group) {
  return group ? group->group.origin().launcher.c_str() : nullptr;
}
const char* ferry_group_reason(const ferry_group* group) {
  return group ? group->group.origin().reason.c_str() : nullptr;
}
int32_t ferry_group_usable(const ferry_group* group) { return group && group->group.usable(); }

ferry_code ferry_group_view(const ferry_group* group, uint64_t* number, int32_t* members,
                            int32_t* num_members) {
  return guarded([&] {
    required(number, "number");
    required(members, "members");
    required(num_members, "num_members");
    const ferry::View& view = required(group, "group").group.view();
    *number = view.number;
    std::copy(view.members.begin(), view.members.end(), members);
    *num_members = static_cast<int32_t>(view.members.size());
  });
}

ferry_code ferry_group_survive(ferry_group* group, int64_t deadline_ns) {
  return guarded([&] {
    return required(group, "group").group.survive(std::chrono::nanoseconds(deadline_ns));
  });
}

ferry_code ferry_group_fence(ferry_group* group, int32_t rank) {
  return guarded([&] { return required(group, "group").group.fence(rank); });
}

ferry_code ferry_group_admit(ferry_group* group, const int32_t* ranks, int32_t num_ranks,
                             int64_t deadline_ns) {
  return guarded([&] {
    return required(group, "group")
        .group.admit(array_of(ranks, num_ranks, "ranks"), std::chrono::nanoseconds(deadline_ns));
  });
}

ferry_code ferry_group_barrier(ferry_group* group) {
  return guarded([&] { return required(group, "group").group.barrier(); });
}

ferry_code ferry_group_all_gather(ferry_group* group, const void* mine, size_t bytes, void* all) {
  return guarded([&] { return required(group, "group").group.all_gather(mine, bytes, all); });
}
