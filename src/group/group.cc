// The public Group: ways to create one, and the checks in front of GroupState.
#include "ferry/group.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <random>
#include <thread>

#include "group/state.h"
#include "transport/environment.h"

namespace ferry {

namespace {

using internal::Deadline;
using internal::GroupState;

constexpr std::size_t kMaxAddress = 64;

void check_members(int rank, int size) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw Error(
        Code::kInvalidArgument,
        fmt::format("rank {} of {} ranks: need size >= 1 and 0 <= rank < size", rank, size));
  }
}

void check_options(const GroupOptions& options) {
  if (options.deadline <= std::chrono::nanoseconds(0)) {
    throw Error(Code::kInvalidArgument,
                fmt::format("the deadline is {} ns, need more than 0", options.deadline.count()));
  }
}

std::shared_ptr<GroupState> join(const std::string& address, int rank, int size,
                                 const GroupOptions& options, GroupOrigin origin) {
  check_members(rank, size);
  check_options(options);
  const std::string name = options.name.empty() ? address : address + "/" + options.name;
  auto rendezvous = internal::process_rendezvous(
      name, rank, size, Deadline::after(options.deadline, &options.interrupted));
  return std::make_shared<GroupState>(std::move(rendezvous), options, std::move(origin));
}

}  // namespace

Group Group::from_environment(const GroupOptions& options) {
  const internal::Launch launch = internal::launch_from_environment([](const std::string& name) {
    const char* value = std::getenv(name.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
  });
  return Group(
      join(launch.job, launch.rank, launch.size, options, {launch.launcher, launch.reason}));
}

Group Group::connect(const std::string& address, int rank, int size, const GroupOptions& options) {
  if (address.empty() || address.size() > kMaxAddress) {
    throw Error(Code::kInvalidArgument, fmt::format("the address \"{}\" has {} bytes, need 1 to {}",
                                                    address, address.size(), kMaxAddress));
  }
  return Group(join(address, rank, size, options,
                    {"address", fmt::format("connect(\"{}\", {}, {})", address, rank, size)}));
}

// The all-gather tells the others the name that rank 0 made up; everything else goes the way of
// connect().
Group Group::from_all_gather(int rank, int size, const AllGather& all_gather,
                             const GroupOptions& options) {
  check_members(rank, size);
  if (!all_gather)
    throw Error(Code::kInvalidArgument, "from_all_gather needs an all-gather function, got none");
  std::random_device random;
  char mine[32] = {};
  fmt::format_to_n(mine, sizeof mine - 1, "cb-{:08x}{:08x}", random(), random());
  std::vector<char> all(sizeof mine * size);
  if (!all_gather(mine, all.data(), sizeof mine)) {
    throw Error(Code::kSystem,
                fmt::format("the caller's all-gather of {} bytes failed on rank {} of {}",
                            sizeof mine, rank, size));
  }
  if (std::memcmp(all.data() + rank * sizeof mine, mine, sizeof mine) != 0) {
    throw Error(
        Code::kInvalidArgument,
        fmt::format("the caller's all-gather did not return rank {}'s own {} bytes at its place",
                    rank, sizeof mine));
  }
  all[sizeof mine - 1] = '\0';
  return Group(join(all.data(), rank, size, options, {"callback", "a caller's all-gather"}));
}

std::vector<Group> Group::threads(int size, const GroupOptions& options) {
  check_members(0, size);
  check_options(options);
  std::vector<std::unique_ptr<internal::Rendezvous>> rendezvous = internal::thread_rendezvous(size);
  std::vector<Group> groups(size);
  std::vector<std::exception_ptr> failures(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const GroupOrigin origin{"threads",
                                 fmt::format("{} threads of process {}", size, getpid())};
        groups[rank] =
            Group(std::make_shared<GroupState>(std::move(rendezvous[rank]), options, origin));
      } catch (...) {
        failures[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return groups;
}

namespace {

GroupState& member(const std::shared_ptr<GroupState>& state) {
  if (!state)
    throw Error(Code::kClosed,
                "this Group is not a member of anything (default-made or destroyed)");
  return *state;
}

const Status kNotAMember{Code::kClosed,
                         "this Group is not a member of anything (default-made or destroyed)"};

}  // namespace

int Group::rank() const { return member(state_).rank(); }
int Group::size() const { return member(state_).size(); }
const GroupOrigin& Group::origin() const { return member(state_).origin(); }

Status Group::barrier() noexcept { return state_ ? state_->barrier() : kNotAMember; }

Status Group::all_gather(const void* mine, std::size_t bytes, void* all) noexcept {
  return state_ ? state_->all_gather(mine, bytes, all) : kNotAMember;
}

bool Group::usable() const noexcept { return state_ && state_->usable(); }

void Group::destroy() noexcept {
  if (state_) state_->leave();
  state_.reset();
}

void run_threads(int size, const std::function<void(Group)>& body, const GroupOptions& options) {
  std::vector<Group> groups = Group::threads(size, options);
  std::vector<std::exception_ptr> failures(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(std::move(groups[rank]));
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

}  // namespace ferry
