#include "exchange/ways/ways.h"

#include <algorithm>
#include <utility>

#include "exchange/setup/setup.h"
#include "exchange/ways/way.h"
#include "topology/mate.h"

namespace ferry::internal {

Ways::Ways(GroupState& group, const Setup& setup, const WindowView& view, bool everybody)
    : group_(&group) {
  const auto add = [&](bool second) {
    ways_.push_back(
        std::make_shared<Way>(group, view, setup.config, setup.choice.algorithm, second));
  };
  if (group.one_node()) return;
  add(/*second=*/false);
  if (everybody && ways_[0]->links().has_second_way()) add(/*second=*/true);
}

std::vector<Way*> Ways::of(const ActiveSet& active) const {
  std::vector<Way*> ways{ways_[0].get()};
  if (both(active)) ways.push_back(ways_[1].get());
  return ways;
}

std::size_t Ways::of_token(std::int64_t token, std::size_t num_ways) const noexcept {
  if (num_ways == 1) return 0;
  return takes_second_way(token, group_->topology().level(0).link.second_share()) ? 1 : 0;
}

// Only ranks of this node wait for sums of counts.
void Ways::send_progress(std::uint64_t number, Stage stage) const {
  if (stage == Stage::kSummed) return;
  send_read_through(number);
  if (ways_.size() > 1 && stage == Stage::kDelivered) ways_[1]->mirror().send_delivered(number);
}

void Ways::send_read_through(std::uint64_t number) const {
  if (!none()) ways_[0]->mirror().send(number);
}

void Ways::send_departure() const {
  for (const auto& way : ways_) way->mirror().send_departure();
}

ForwardingTable Ways::send_set(const ActiveSet& active) const {
  return none() ? ForwardingTable() : ways_[0]->mirror().send_read(active.waited, active.all());
}

void Ways::use(ForwardingTable table) const {
  if (!none()) ways_[0]->links().use(std::move(table));
}

void Ways::begin_view(std::uint64_t last) const {
  for (const auto& way : ways_) way->begin_view(last);
  if (none()) return;
  const std::vector<bool>* const some = group_->survival().waited();
  const std::vector<bool> members = some ? *some : std::vector<bool>(group_->size(), true);
  use(ways_[0]->mirror().table_of(members, /*all=*/some == nullptr));
}

std::uint32_t Ways::number() const noexcept { return none() ? 0 : ways_[0]->channel(); }

const ForwardingTable& Ways::table() const noexcept { return ways_[0]->table(); }

const std::vector<int>* Ways::last_hop(std::size_t way) const noexcept {
  return way < ways_.size() ? &ways_[way]->table().last_hop : nullptr;
}

std::vector<bool> Ways::mates() const {
  std::vector<bool> mates(group_->size());
  for (const auto& way : ways_) {
    for (const ForwardingTable::Mate& mate : way->table().mates) mates[mate.rank] = true;
  }
  return mates;
}

bool Ways::serves(int peer) const noexcept { return !none() && ways_[0]->table().is_served[peer]; }

bool Ways::by_subtree() const noexcept { return !none() && !ways_[0]->sums().exact(); }

DataType Ways::sum_type(DataType row_type) const noexcept {
  return none() ? row_type : ways_[0]->sums().sum_type(row_type);
}

int Ways::num_levels() const noexcept { return none() ? 0 : group_->topology().num_levels(); }

void Ways::forget_sums(std::uint64_t number) const {
  for (const auto& way : ways_) way->sums().forget(number, group_->rank());
}

void Ways::use(const std::shared_ptr<WorkerPool>& workers) const {
  for (const auto& way : ways_) way->sums().use(workers);
}

CrossedBytes Ways::crossed(int level) const noexcept {
  CrossedBytes sum;
  for (const auto& way : ways_) {
    const CrossedBytes crossed = way->links().crossed(level);
    sum.rows += crossed.rows;
    sum.all += crossed.all;
  }
  return sum;
}

void Ways::release() const {
  for (const auto& way : ways_) group_->release_channel(way->channel());
}

void Ways::keep_open() {
  for (const auto& way : std::exchange(ways_, {})) group_->keep_open(way->channel(), way);
}

}  // namespace ferry::internal
