// The public Group: ways to create one, and the checks in front of GroupState.
#include "ferry/group.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <optional>
#include <thread>

#include "bootstrap/launcher.h"
#include "bootstrap/tcp.h"
#include "group/join.h"
#include "group/state.h"

namespace ferry {

namespace {

using internal::GroupState;

constexpr std::size_t kMaxAddress = 64;

// Calls body(rank) on a thread for each rank, and throws the exception of the lowest rank that
// threw one.
void on_threads(int size, const std::function<void(int)>& body) {
  std::vector<std::exception_ptr> failures(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        failures[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

void check_members(int rank, int size, const GroupOptions& options) {
  const std::vector<int>& members = options.members;
  const auto unsorted = std::ranges::adjacent_find(members, std::greater_equal<>());
  if (unsorted != members.end() || members.front() < 0 || members.back() >= size) {
    throw Error(Code::kInvalidArgument,
                fmt::format("the group begins with ranks [{}]: need ascending ranks from 0 to {}",
                            fmt::join(members, ", "), size - 1),
                rank);
  }
}

// For ranks that do not meet at an address, to which others could come later.
void check_no_members(const GroupOptions& options, const char* kind) {
  if (options.members.empty()) return;
  throw Error(Code::kInvalidArgument,
              fmt::format("{} begin a group together, and not with some of its ranks: [{}]", kind,
                          fmt::join(options.members, ", ")));
}

void check_arguments(int rank, int size, const GroupOptions& options) {
  if (size < 1 || size > Topology::kMostRanks || rank < 0 || rank >= size) {
    throw Error(Code::kInvalidArgument,
                fmt::format("rank {} of {} ranks: need a size from 1 to {} and 0 <= rank < size",
                            rank, size, Topology::kMostRanks));
  }
  if (options.deadline <= std::chrono::nanoseconds(0)) {
    throw Error(Code::kInvalidArgument,
                fmt::format("the deadline is {} ns, need more than 0", options.deadline.count()));
  }
  if (!options.members.empty()) check_members(rank, size, options);
}

bool is_newcomer(int rank, const GroupOptions& options) {
  const std::vector<int>& members = options.members;
  return options.newcomer || !(members.empty() || std::ranges::binary_search(members, rank));
}

// If a member or another newcomer is lost or late, the members may admit this process later.
std::shared_ptr<GroupState> come_back_at(const internal::JoinAddress& at,
                                         const GroupOptions& options, const GroupOrigin& origin,
                                         const internal::Deadline& by) {
  while (true) {
    try {
      auto [rendezvous, admission] = internal::come_back_to_address(at, options, by);
      return internal::NextView::newcomer(std::move(rendezvous), admission, options, origin, by);
    } catch (const Error& error) {
      const bool again = error.code() == Code::kPeerLost || error.code() == Code::kTimeout;
      if (!again || by.passed()) throw;
    }
  }
}

std::shared_ptr<GroupState> join_at(const internal::JoinAddress& at, const GroupOptions& options,
                                    GroupOrigin origin) {
  check_arguments(at.rank, at.size, options);
  const auto by = internal::Deadline::after(options.deadline, &options.interrupted);
  if (is_newcomer(at.rank, options)) return come_back_at(at, options, origin, by);
  return std::make_shared<GroupState>(internal::join_at_address(at, options, by), options,
                                      std::move(origin), by);
}

}  // namespace

Group Group::from_environment(const GroupOptions& options) {
  const Place place = await_place(options.interrupted);
  const internal::Launch launch = internal::launch_from_environment([&](const std::string& name) {
    const auto given = std::ranges::find(place, name, &Place::value_type::first);
    return given != place.end() ? given->second : internal::environment(name);
  });
  GroupOptions joining = options;
  joining.newcomer = options.newcomer || launch.newcomer;
  if (joining.members.empty()) joining.members = launch.members;
  return Group(join_at({launch.address, launch.job, launch.rank, launch.size, launch.local},
                       joining, {launch.launcher, launch.reason, launch.address}));
}

Group Group::connect(const std::string& address, int rank, int size, const GroupOptions& options) {
  if (!internal::is_tcp(address) && (address.empty() || address.size() > kMaxAddress)) {
    throw Error(Code::kInvalidArgument, fmt::format("the address \"{}\" has {} bytes, need 1 to {}",
                                                    address, address.size(), kMaxAddress));
  }
  return Group(
      join_at({address, address, rank, size}, options,
              {"address", fmt::format("connect(\"{}\", {}, {})", address, rank, size), address}));
}

Group Group::from_all_gather(int rank, int size, const AllGather& all_gather,
                             const GroupOptions& options) {
  check_arguments(rank, size, options);
  check_no_members(options, "the ranks of an all-gather");
  if (!all_gather)
    throw Error(Code::kInvalidArgument, "from_all_gather needs an all-gather function, got none");
  std::optional<internal::Deadline> by;
  auto [rendezvous, address] = internal::join_by_all_gather(rank, size, all_gather, options, by);
  return Group(
      std::make_shared<GroupState>(std::move(rendezvous), options,
                                   GroupOrigin{"callback", "a caller's all-gather", address}, *by));
}

std::vector<Group> Group::threads(int size, const GroupOptions& options) {
  return GroupState::threads(size, options, internal::ucx_transport);
}

Group GroupState::join(std::unique_ptr<internal::Rendezvous> rendezvous,
                       const GroupOptions& options, const GroupOrigin& origin,
                       const internal::Deadline& by, const internal::TransportFactory& make) {
  return Group(std::make_shared<GroupState>(std::move(rendezvous), options, origin, by, make));
}

std::vector<Group> GroupState::threads(int size, const GroupOptions& options,
                                       const internal::TransportFactory& make) {
  check_arguments(0, size, options);
  check_no_members(options, "threads");
  std::vector<std::unique_ptr<internal::Rendezvous>> rendezvous =
      internal::thread_rendezvous(internal::split_nodes(options, size));
  const GroupOrigin origin{"threads", fmt::format("{} threads of process {}", size, getpid()), ""};
  std::vector<Group> groups(size);
  on_threads(size, [&](int rank) {
    const auto by = internal::Deadline::after(options.deadline, &options.interrupted);
    groups[rank] = join(std::move(rendezvous[rank]), options, origin, by, make);
  });
  return groups;
}

namespace {

const Status kNotAMember{Code::kClosed,
                         "this Group is not a member of anything (default-made or destroyed)"};

GroupState& member(const std::shared_ptr<GroupState>& state) {
  if (!state) throw Error(kNotAMember.code(), kNotAMember.message());
  return *state;
}

}  // namespace

int Group::rank() const { return member(state_).rank(); }
int Group::size() const { return member(state_).size(); }
const GroupOrigin& Group::origin() const { return member(state_).origin(); }
const Topology& Group::topology() const { return member(state_).topology(); }

Status Group::barrier() noexcept { return state_ ? state_->barrier() : kNotAMember; }

Status Group::all_gather(const void* mine, std::size_t bytes, void* all) noexcept {
  return state_ ? state_->all_gather(mine, bytes, all) : kNotAMember;
}

const View& Group::view() const { return member(state_).view(); }

Status Group::survive(std::chrono::nanoseconds deadline) noexcept {
  return state_ ? state_->survive(deadline) : kNotAMember;
}

Status Group::fence(int rank) noexcept {
  return state_ ? internal::fence(*state_, rank) : kNotAMember;
}

Status Group::admit(std::span<const int> ranks, std::chrono::nanoseconds deadline) noexcept {
  return state_ ? state_->admit(ranks, deadline) : kNotAMember;
}

bool Group::usable() const noexcept { return state_ && state_->usable(); }

void Group::destroy() noexcept {
  if (state_) state_->leave();
  state_.reset();
}

void run_threads(int size, const std::function<void(Group)>& body, const GroupOptions& options) {
  std::vector<Group> groups = Group::threads(size, options);
  on_threads(size, [&](int rank) { body(std::move(groups[rank])); });
}

}  // namespace ferry
