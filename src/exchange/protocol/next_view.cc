// Part of Protocol: how the exchange goes on in the next view of its group. The ranks have stopped
// in different operations. Each writes down how far it has come; then all go on from the same
// number, which is as large as the largest of them, as if all operations up to it were finished.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/check.h"
#include "exchange/protocol/protocol.h"

namespace ferry::internal {

// Relaxed: published by the seat of this rank in the view. Partner: take_members().
void Protocol::prepare(std::uint64_t next) noexcept {
  ControlFlags::Prepared& mine = view_.control(setup_.rank).prepared[next % 2];
  mine.number.store(issued_, std::memory_order_relaxed);
  mine.view.store(next, std::memory_order_relaxed);
}

void Protocol::renew(const View& view) noexcept {
  in_flight_.clear();
  early_.clear();
  of_view_.unfit = take_members(view);
  if (!of_view_.unfit.ok()) return;
  active_ = last_.set = of_view_.ranks;
  set_known_ = true;
  refused_alone_ = 0;
  last_.number = read_through_ = of_view_.before = issued_;
  ControlFlags& mine = view_.control(setup_.rank);
  raise(mine.progress, progress_of(issued_, Stage::kDelivered));
  raise(mine.read_through, issued_);
}

// Finds the number of the last operation and the ranks of a call that names none. An error is the
// same on all ranks of the view.
Status Protocol::take_members(const View& view) {
  std::vector<int> lacking;
  for (const int rank : view.members) {
    const ControlFlags::Prepared& theirs = view_.control(rank).prepared[view.number % 2];
    // Relaxed: their seats in the view are known. Partner: prepare().
    if (theirs.view.load(std::memory_order_relaxed) != view.number) lacking.push_back(rank);
    issued_ = std::max(issued_, theirs.number.load(std::memory_order_relaxed));
  }
  if (!lacking.empty()) {
    return {Code::kMismatch,
            fmt::format("ranks {} do not have this exchange in view {}: they destroyed it, or its "
                        "creation ended with the view before",
                        fmt::join(lacking, ", "), view.number),
            lacking[0]};
  }
  try {
    const bool everybody = std::ssize(view.members) == view_.num_ranks();
    of_view_.ranks = everybody ? setup_.everybody : setup_.active_set(view.members);
    return {};
  } catch (const Error& error) {
    return {Code::kInvalidArgument,
            fmt::format("this exchange cannot go on in view {} with ranks {}: {}", view.number,
                        fmt::join(view.members, ", "), error.what()),
            setup_.rank};
  }
}

}  // namespace ferry::internal
