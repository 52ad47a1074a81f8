// Part of Protocol: how the exchange goes on in the next view of its group. The ranks have stopped
// in different operations. Each rank writes the number of its last operation (prepare). Then all
// ranks go on from the largest of these numbers, as if all operations up to it were finished.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "exchange/protocol/protocol.h"

namespace ferry::internal {

namespace {

// Throws unless each member that has a shared expert gets the rows of that expert. The number of
// the expert whose rows a member gets follows from its place among the members with a shared
// expert.
void check_shared_experts(const SharedExperts& shared, const std::vector<int>& members) {
  if (shared.num_experts == 0) return;
  std::vector<int> holders;
  std::ranges::copy_if(members, std::back_inserter(holders),
                       [&](int rank) { return rank < shared.num_ranks; });
  const int before = shared.num_ranks / shared.num_experts;
  const int now = static_cast<int>(holders.size()) / shared.num_experts;
  bool kept = now > 0;
  for (std::size_t place = 0; place < holders.size() && kept; ++place)
    kept = holders[place] / before == static_cast<int>(place) / now;
  if (!kept)
    throw Error(Code::kInvalidArgument,
                fmt::format("the {} shared experts lie on ranks 0 to {}, and those that remain of "
                            "these, [{}], do not have each of them equally often",
                            shared.num_experts, shared.num_ranks - 1, fmt::join(holders, ", ")));
}

}  // namespace

// Relaxed: published by the seat of this rank in the view, or by the agreement of the ranks that
// make the exchange. Partner: take_members().
void Protocol::prepare(ControlFlags& mine, std::uint64_t next, std::uint64_t number) noexcept {
  ControlFlags::Prepared& prepared = mine.prepared[next % 2];
  prepared.number.store(number, std::memory_order_relaxed);
  prepared.view.store(next, std::memory_order_relaxed);
}

// Relaxed: as in take_members().
void Protocol::append_prepared(std::uint64_t next, std::vector<Lasting::Prepared>& known) const {
  for (int rank = 0; rank < view_.num_ranks(); ++rank) {
    if (!group_.survival().has(rank)) continue;
    const ControlFlags::Prepared& prepared = view_.control(rank).prepared[next % 2];
    if (prepared.view.load(std::memory_order_relaxed) != next) continue;
    known.push_back({prepared.number.load(std::memory_order_relaxed), ways_.number(),
                     static_cast<std::uint32_t>(rank)});
  }
}

void Protocol::store_prepared(std::uint64_t next,
                              const std::vector<Lasting::Prepared>& known) noexcept {
  for (const auto& [number, object, rank] : known) {
    if (object == ways_.number() && !view_.here(static_cast<int>(rank)))
      prepare(view_.control(static_cast<int>(rank)), next, number);
  }
}

void Protocol::renew(const View& view) noexcept {
  in_flight_.clear();
  early_.clear();
  of_view_.unfit = take_members(view);
  of_view_.before = issued_;
  if (!of_view_.unfit.ok()) return;
  active_ = last_.set = of_view_.ranks;
  set_known_ = true;
  refused_alone_ = 0;
  last_.number = read_through_ = issued_;
  ControlFlags& mine = view_.control(setup_.rank);
  raise(mine.progress, progress_of(issued_, Stage::kDelivered));
  raise(mine.read_through, issued_);
  for (const int rank : view.members) {
    if (view_.here(rank)) continue;
    // That rank raises its own flags to the same values, so ranks of this node need no message
    // about them.
    ControlFlags& theirs = view_.control(rank);
    raise_to(theirs.progress, progress_of(issued_, Stage::kDelivered));
    raise_to(theirs.second_way, progress_of(issued_, Stage::kDelivered));
    raise_to(theirs.read_through, issued_);
  }
  ways_.begin_view(issued_);
}

// Finds the number of the last operation and the ranks of a call that names none. If there is an
// error, every rank of the view gets one, with the same code.
Status Protocol::take_members(const View& view) {
  std::vector<int> lacking;
  for (const int rank : view.members) {
    const ControlFlags::Prepared& theirs = view_.control(rank).prepared[view.number % 2];
    // Relaxed: the seats of the members are known, or the members have made the exchange in this
    // view. Partner: prepare().
    if (theirs.view.load(std::memory_order_relaxed) != view.number) lacking.push_back(rank);
    issued_ = std::max(issued_, theirs.number.load(std::memory_order_relaxed));
  }
  if (!lacking.empty()) {
    return {Code::kMismatch,
            fmt::format("ranks {} do not have this exchange in view {}: they destroyed it, or its "
                        "creation ended with the view before, or they came later (admit): make it "
                        "again",
                        fmt::join(lacking, ", "), view.number),
            lacking[0]};
  }
  try {
    const bool everybody = std::ssize(view.members) == view_.num_ranks();
    of_view_.ranks = everybody ? setup_.everybody : setup_.active_set(view.members);
    check_shared_experts(setup_.config.shared, view.members);
    return {};
  } catch (const Error& error) {
    return {Code::kInvalidArgument,
            fmt::format("this exchange is not for view {} with ranks {}: {}", view.number,
                        fmt::join(view.members, ", "), error.what()),
            setup_.rank};
  }
}

}  // namespace ferry::internal
