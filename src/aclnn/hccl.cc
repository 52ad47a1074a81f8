#include "aclnn/hccl.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <string_view>

#include "aclnn/environment.h"
#include "aclnn/runtime.h"
#include "base/check.h"
#include "cann/refusal.h"

namespace ferry::aclnn {

namespace {

using cann::internal::require;
using cann::internal::require_fit;
using cann::internal::require_value;

struct RankHandle {
  std::shared_ptr<Domain> domain;
  std::int32_t rank;
};

// The state that all threads share: domains by name, and the joint groups of tensor parallelism, by
// the name of their first domain.
struct Names {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<Domain>> domains;
  std::map<std::string, std::weak_ptr<std::vector<Group>>> joint;
  std::uint64_t made = 0;
};
Names& names() {
  static Names all;
  return all;
}

std::string new_name() {  // call with the lock held
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  return fmt::format("hccl-{:x}-{:x}-{}", getpid(), now, names().made++);
}

std::shared_ptr<Domain> find_domain(const char* what, std::string_view name) {
  require(!name.empty(), cann::StatusCode::kNullPointer, "{} is null or empty", what);
  require_value(name.size() < COMM_NAME_MAX_LENGTH, "{} has {} characters, need fewer than {}",
                what, name.size(), static_cast<int>(COMM_NAME_MAX_LENGTH));
  const std::lock_guard lock(names().mutex);
  const auto found = names().domains.find(std::string(name));
  auto domain = found == names().domains.end() ? nullptr : found->second.lock();
  if (!domain)
    throw cann::internal::Refused{
        cann::StatusCode::kRuntimeError,
        {Code::kInvalidArgument, fmt::format("{} \"{}\" names no communicator", what, name)}};
  return domain;
}

void check_rank(const char* what, const Domain& domain, std::int64_t rank, std::int64_t size) {
  const auto ranks = static_cast<std::int64_t>(domain.devices.size());
  require_fit(ranks == size, "the communicator of {} has {} ranks, the world size is {}", what,
              ranks, size);
  require_value(rank >= 0 && rank < ranks, "the rank in {} is {}, need 0 to {}", what, rank,
                ranks - 1);
  require_value(domain.devices[rank] == current_device(),
                "rank {} of {} joined on device {}, this thread is on device {}", rank, what,
                domain.devices[rank], current_device());
}

// Joins the ranks of `ep` and of all the domains that `tp` connects to it in one group. Collective
// among the ranks of `tp`, which gather the names of their `ep` domains; the first of these names
// identifies the group, because each `tp` domain gathers the same names.
Group joint_group(const Domain& ep, const Domain& tp, const cann::Attributes& a) {
  std::array<char, COMM_NAME_MAX_LENGTH> mine = {};
  ep.name.copy(mine.data(), mine.size() - 1);
  std::vector<std::array<char, COMM_NAME_MAX_LENGTH>> all(tp.groups.size());
  Group row = tp.groups[a.tp_rank_id];
  require_ok(row.all_gather(mine.data(), mine.size(), all.data()));
  const auto size = static_cast<int>(a.ep_world_size * a.tp_world_size);
  const auto rank = static_cast<int>(a.ep_rank_id * a.tp_world_size + a.tp_rank_id);
  FERRY_CHECK(rank, >=, 0);
  FERRY_CHECK(rank, <, size);
  FERRY_CHECK(ep.groups.size(), ==, ep.devices.size());
  const std::string first = std::string("tp-") + all[0].data();
  if (std::ranges::count(ep.devices, -1) > 0) return Group::connect(first, rank, size);
  const std::lock_guard lock(names().mutex);
  auto& known = names().joint[first];
  auto joint = known.lock();
  if (!joint) {
    // The domain of each rank keeps the whole group, so that the ranks can be destroyed in any
    // order.
    joint = std::make_shared<std::vector<Group>>(Group::threads(size));
    known = joint;
  }
  FERRY_CHECK(std::ssize(*joint), ==, size);
  for (const auto& name : all) {
    const auto domain = names().domains.at(name.data()).lock();
    if (domain) domain->joint = joint;
  }
  return (*joint)[rank];
}

std::shared_ptr<Domain> make_domain(std::string name, std::size_t size) {
  auto domain = std::make_shared<Domain>();
  domain->name = std::move(name);
  domain->devices.assign(size, -1);
  domain->groups.resize(size);
  domain->buffer_bytes = buffer_bytes_in_environment();
  std::erase_if(names().domains, [](const auto& entry) { return entry.second.expired(); });
  std::erase_if(names().joint, [](const auto& entry) { return entry.second.expired(); });
  names().domains[domain->name] = domain;
  return domain;
}

template <typename Body>
HcclResult guarded(const char* name, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    fail(HCCL_E_PARA, fmt::format("{}: {}", name, error.what()));
    return error.code() == Code::kInvalidArgument ? HCCL_E_PARA
           : error.code() == Code::kTimeout       ? HCCL_E_TIMEOUT
                                                  : HCCL_E_INTERNAL;
  } catch (const std::exception& error) {
    fail(HCCL_E_INTERNAL, fmt::format("{}: {}", name, error.what()));
    return HCCL_E_INTERNAL;
  }
}

HcclResult refuse(HcclResult code, const std::string& message) {
  fail(code, message);
  return code;
}

}  // namespace

std::uint64_t Member::take_turn() {
  const std::lock_guard lock(mutex_);
  return taken_++;
}

cann::Result Member::run(std::uint64_t turn,
                         const std::function<cann::Result(const cann::Communicator&)>& body) {
  {
    // This wait ends: calls of earlier turns end at the group's deadline.
    std::unique_lock lock(mutex_);
    wait_until(next_, lock, [&] { return done_ == turn; });
  }
  cann::Result result;
  try {
    if (!communicator_.cache()) communicator_ = connect_();
    result = body(communicator_);
  } catch (const Error& error) {
    result = {cann::status_code(error.code()), {error.code(), error.what(), error.culprit()}};
  } catch (const std::exception& error) {
    result = {cann::StatusCode::kRuntimeError, {Code::kSystem, error.what()}};
  }
  {
    const std::lock_guard lock(mutex_);
    ++done_;
  }
  next_.notify_all();
  return result;
}

std::shared_ptr<Member> find_member(const cann::Attributes& a, std::uint64_t& buffer_bytes) {
  const auto ep = find_domain("groupEp", a.group_ep);
  check_rank("groupEp", *ep, a.ep_rank_id, a.ep_world_size);
  std::shared_ptr<Domain> tp;
  if (a.tp_world_size > 1) {
    require_value(a.group_tp != a.group_ep, "groupTp is \"{}\", as groupEp", a.group_tp);
    tp = find_domain("groupTp", a.group_tp);
    check_rank("groupTp", *tp, a.tp_rank_id, a.tp_world_size);
  }
  buffer_bytes = ep->buffer_bytes;
  const std::lock_guard lock(names().mutex);
  auto& member = ep->members[{a.ep_rank_id, tp ? tp->name : ""}];
  if (member) return member;
  // The communicator holds the group. It does not keep the domains, which belong to the caller.
  const auto connect = [ep = std::weak_ptr(ep), tp = std::weak_ptr(tp), a,
                        names_of = std::make_pair(ep->name, tp ? tp->name : std::string())]() {
    const auto here = ep.lock(), row = tp.lock();
    if (!here || (a.tp_world_size > 1 && !row))
      throw Error(Code::kClosed, "the communicator was destroyed");
    Group group = row ? joint_group(*here, *row, a) : here->groups[a.ep_rank_id];
    return cann::Communicator(std::move(group),
                              {.group_ep = names_of.first, .group_tp = names_of.second});
  };
  return member = std::make_shared<Member>(connect);
}

}  // namespace ferry::aclnn

using namespace ferry::aclnn;

extern "C" {

HcclResult HcclCommInitAll(uint32_t ndev, int32_t* devices, HcclComm* comms) {
  return guarded("HcclCommInitAll", [&] {
    if (devices == nullptr || comms == nullptr)
      return refuse(HCCL_E_PTR, "HcclCommInitAll: devices or comms is null");
    std::vector<std::int32_t> all(devices, devices + ndev), sorted = all;
    std::ranges::sort(sorted);
    if (ndev == 0 || sorted[0] < 0 || std::ranges::adjacent_find(sorted) != sorted.end())
      return refuse(HCCL_E_PARA,
                    fmt::format("HcclCommInitAll: {} devices, need 1 or more distinct devices, "
                                "each 0 or more",
                                ndev));
    const std::lock_guard lock(names().mutex);
    const auto domain = make_domain(new_name(), ndev);
    domain->devices = std::move(all);
    domain->groups = ferry::Group::threads(static_cast<int>(ndev));
    for (std::uint32_t rank = 0; rank < ndev; ++rank)
      comms[rank] = new RankHandle{domain, static_cast<std::int32_t>(rank)};
    return HCCL_SUCCESS;
  });
}

HcclResult HcclGetRootInfo(HcclRootInfo* info) {
  if (info == nullptr) return refuse(HCCL_E_PTR, "HcclGetRootInfo: null");
  const std::lock_guard lock(names().mutex);
  std::memset(info->internal, 0, sizeof info->internal);
  new_name().copy(info->internal, COMM_NAME_MAX_LENGTH - 1);
  return HCCL_SUCCESS;
}

HcclResult HcclCommInitRootInfo(uint32_t size, const HcclRootInfo* info, uint32_t rank,
                                HcclComm* comm) {
  return guarded("HcclCommInitRootInfo", [&] {
    if (info == nullptr || comm == nullptr)
      return refuse(HCCL_E_PTR, "HcclCommInitRootInfo: rootInfo or comm is null");
    if (rank >= size)
      return refuse(HCCL_E_PARA,
                    fmt::format("HcclCommInitRootInfo: rank is {}, need [0, {})", rank, size));
    const std::string name(info->internal, strnlen(info->internal, COMM_NAME_MAX_LENGTH - 1));
    ferry::Group group =
        ferry::Group::connect(name, static_cast<int>(rank), static_cast<int>(size));
    const std::lock_guard lock(names().mutex);
    std::shared_ptr<Domain> domain = names().domains[name].lock();  // null: not made yet
    if (!domain) domain = make_domain(name, size);
    domain->devices[rank] = current_device();
    domain->groups[rank] = std::move(group);
    *comm = new RankHandle{domain, static_cast<std::int32_t>(rank)};
    return HCCL_SUCCESS;
  });
}

HcclResult HcclGetCommName(HcclComm comm, char* name) {
  if (comm == nullptr || name == nullptr) return refuse(HCCL_E_PTR, "HcclGetCommName: null");
  std::snprintf(name, COMM_NAME_MAX_LENGTH, "%s",
                static_cast<RankHandle*>(comm)->domain->name.c_str());
  return HCCL_SUCCESS;
}
HcclResult HcclGetRankId(HcclComm comm, uint32_t* rank) {
  if (comm == nullptr || rank == nullptr) return refuse(HCCL_E_PTR, "HcclGetRankId: null");
  *rank = static_cast<std::uint32_t>(static_cast<RankHandle*>(comm)->rank);
  return HCCL_SUCCESS;
}
HcclResult HcclGetRankSize(HcclComm comm, uint32_t* size) {
  if (comm == nullptr || size == nullptr) return refuse(HCCL_E_PTR, "HcclGetRankSize: null");
  *size = static_cast<std::uint32_t>(static_cast<RankHandle*>(comm)->domain->devices.size());
  return HCCL_SUCCESS;
}
HcclResult HcclCommDestroy(HcclComm comm) {
  delete static_cast<RankHandle*>(comm);
  return HCCL_SUCCESS;
}

}  // extern "C"
