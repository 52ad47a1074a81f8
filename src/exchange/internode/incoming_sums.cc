// Sums of a combine from other nodes, as the source asks for them: every mate is told which rows of
// its branch each of my tokens wants, and its answers are laid out before they come, so that
// nothing has to be said about what is where. Called by combine.cc.
#include <fmt/format.h>

#include <span>

#include "exchange/internode/forwarder.h"
#include "exchange/state.h"

namespace ferry::internal {

namespace {

template <typename T>
void put(std::vector<std::byte>& to, const T& value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  to.insert(to.end(), bytes.begin(), bytes.end());
}

}  // namespace

HomeFormat ExchangeState::home_format(const InFlight& operation) const {
  const CombineArgs& args = operation.combine;
  return {.wire = &combine_wire_,
          .type = args.expert_rows.dtype,
          .hidden = args.expert_rows.hidden,
          .partials = args.partials,
          .weighted = args.topk_weights != nullptr};
}

// Between nodes a combine without a handle waits here, as a dispatch does: others wait for my
// questions in their receive half, and must not have to wait for mine.
Status ExchangeState::cross_combine(InFlight& operation) {
  Status status;
  if (operation.unplaced) {
    status = await(operation, "outputs", progress_of(operation.number, Stage::kDelivered), nullptr);
    if (status.ok()) status = examine(operation);
    if (status.ok()) status = place_combined(operation);
    operation.unplaced.reset();
  }
  if (status.ok()) {
    ask_for_sums(operation);
    return {};
  }
  if (status.group_usable()) conclude(operation.number);
  return leave(operation, status);
}

// The answers are laid out, and the questions leave.
void ExchangeState::ask_for_sums(InFlight& operation) {
  const Route& route = *operation.route;
  const HomeFormat format = home_format(operation);
  const int scalars =
      operation.combine.out_topk_weights ? static_cast<int>(layout_.weights_per_row()) : 0;
  const std::vector<ForwardingTable::Mate>& mates = forwarder_->table().mates;
  std::vector<std::size_t> answered(mates.size());
  std::vector<std::vector<std::byte>> asked(mates.size());
  std::vector<std::size_t> offsets;  // of the shares
  std::vector<int> next_hops;
  for (std::int64_t token = 0; token < route.num_tokens; ++token) {
    operation.first_share.push_back(offsets.size());
    const Subtrees subtrees = subtrees_of(route, token * route.num_entries, route.num_entries);
    for (int i = 0; i < subtrees.count(); ++i) {
      const auto& [next_hop, level, entries] = subtrees[i];
      next_hops.push_back(next_hop);
      offsets.push_back(next_hop < 0 ? 0 : answered[next_hop]);
      if (next_hop < 0) continue;
      answered[next_hop] +=
          forwarder_->unit_bytes(static_cast<int>(entries.size()), scalars, format);
      add_terms(operation, entries, asked[next_hop]);
    }
  }
  operation.first_share.push_back(offsets.size());
  operation.sums.resize(mates.size());
  for (std::size_t next_hop = 0; next_hop < mates.size(); ++next_hop) {
    if (answered[next_hop] > 0)
      operation.sums[next_hop] =
          forwarder_->expect_sums(operation.number, mates[next_hop].rank, answered[next_hop]);
    forwarder_->ask(mates[next_hop], operation.number, rank_,
                    {.hidden = format.hidden,
                     .row_type = static_cast<std::int32_t>(format.type),
                     .num_positions = operation.active->num_positions,
                     .partials = static_cast<std::int32_t>(format.partials),
                     .weighted = format.weighted,
                     .scalars = scalars,
                     .unused = 0},
                    asked[next_hop]);
  }
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    const std::byte* sums = next_hops[i] < 0 ? nullptr : operation.sums[next_hops[i]];
    operation.shares.push_back(sums ? sums + offsets[i] : nullptr);
  }
  group_->progress();
}

// One unit: the rows of one token that one branch has.
void ExchangeState::add_terms(const InFlight& operation, std::span<const std::int64_t> entries,
                              std::vector<std::byte>& terms) const {
  const Route& route = *operation.route;
  const ActiveSet& active = *route.active;
  put(terms, static_cast<std::int64_t>(entries.size()));
  for (const std::int64_t entry : entries) {
    const int member = route.refs[entry].member;
    const TokenEntry at{entry / route.num_entries, static_cast<int>(entry % route.num_entries)};
    put(terms, TermHead{.owner = member, .weight = weight_of(operation.combine, route, at)});
    for (int i = 0; i < active.num_positions; ++i) {
      const int position = active.position_from_mine(i);
      put(terms, TermPlace{.rank = active.ranks[active.index(member, position)],
                           .row = static_cast<std::int32_t>(row_at(route, entry, position))});
    }
  }
}

// The sums are here.
Status ExchangeState::await_sums(const InFlight& operation) {
  std::vector<bool> asked(size_);
  const std::vector<ForwardingTable::Mate>& mates = forwarder_->table().mates;
  for (std::size_t next_hop = 0; next_hop < mates.size(); ++next_hop)
    asked[mates[next_hop].rank] = operation.sums[next_hop] != nullptr;
  Status status = await_forwarder(operation, "sums", forwarder_->summed(), operation.number, asked);
  if (!status.ok()) return status;
  for (const auto& [level, mate] : mates) {
    if (!asked[mate] || forwarder_->all_here(operation.number, mate)) continue;
    // Whoever gave up has left as well, and said why.
    if (Status verdict = group_->verdict(); !verdict.ok()) return verdict;
    return {Code::kMismatch,
            fmt::format("operation {}: rank {} destroyed this exchange before it had summed rows "
                        "for rank {}",
                        operation.number, mate, rank_),
            mate};
  }
  return {};
}

// No receive half returns before its duty is done.
Status ExchangeState::await_served(const InFlight& operation) {
  Await await = awaiting(operation, "questions", operation.number);
  await.flags = forwarder_->served();
  await.only = &forwarder_->table().is_served;
  await.last_hop = &forwarder_->table().last_hop;
  return group_->wait(await);
}

// The end of a call: what others wait for has left this rank, which may go on to something else.
Status ExchangeState::leave(const InFlight& operation, const Status& status) {
  if (!forwarder_ || !status.group_usable() || !operation.active->contains_me()) return status;
  const Status left =
      group_->await_left(awaiting(operation, "room", 0), forwarder_->table().is_mate);
  return status.ok() || !left.group_usable() ? left : status;
}

Status ExchangeState::await_forwarder(const InFlight& operation, const char* phase,
                                      const std::atomic<std::uint64_t>* flags, std::uint64_t value,
                                      const std::vector<bool>& only) {
  Await await = awaiting(operation, phase, value);
  await.flags = flags;
  await.only = &only;
  return group_->wait(await);
}

}  // namespace ferry::internal
