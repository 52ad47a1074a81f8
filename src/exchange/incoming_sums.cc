// Sums of a combine from other nodes, as the source asks for them: every mate is told which rows of
// its node each of my tokens wants, and its answers are laid out before they come, so that nothing
// has to be said about what is where. Called by combine.cc.
#include <algorithm>
#include <cstring>

#include "exchange/crossing.h"
#include "exchange/state.h"
#include "exchange/token_groups.h"

namespace ferry::internal {

namespace {

std::size_t asked_bytes(std::size_t num_terms, int num_positions) {
  return sizeof(std::int64_t) + num_terms * (sizeof(TermHead) + num_positions * sizeof(TermPlace));
}

template <typename T>
std::byte* put(std::byte* at, const T& value) {
  std::memcpy(at, &value, sizeof value);
  return at + sizeof value;
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

// Sizes first: the answers' places are known before the questions leave.
Status ExchangeState::ask_for_sums(InFlight& operation) {
  const Route& route = *operation.route;
  const int scalars =
      operation.combine.out_topk_weights ? static_cast<int>(layout_.weights_per_row()) : 0;
  const HomeFormat format = home_format(operation);
  const int num_positions = operation.active->num_positions;
  const int num_nodes = group_->nodes().count();
  std::vector<std::size_t> asked(num_nodes), answered(num_nodes);
  for (std::int64_t token = 0; token < route.num_tokens; ++token) {
    const TokenGroups groups(grouping(), route, token * route.num_entries, route.num_entries);
    for (int i = 0; i < groups.count(); ++i) {
      const std::size_t terms = groups[i].entries.size();
      asked[groups[i].node] += asked_bytes(terms, num_positions);
      answered[groups[i].node] += crossing_->unit_bytes(static_cast<int>(terms), scalars, format);
    }
  }
  operation.sums.resize(num_nodes);
  for (int node = 0; node < num_nodes; ++node) {
    const int mate = operation.active->mates[node];
    if (mate < 0) continue;
    if (answered[node] > 0)
      operation.sums[node] = crossing_->expect_sums(operation.number, mate, answered[node]);
    const Ask ask{.term_bytes = asked[node],
                  .hidden = format.hidden,
                  .row_type = static_cast<std::int32_t>(format.type),
                  .num_positions = num_positions,
                  .partials = static_cast<std::int32_t>(format.partials),
                  .weighted = format.weighted,
                  .scalars = scalars};
    crossing_->ask(mate, operation.number, ask);
  }
  return send_terms(operation, scalars);
}

Status ExchangeState::send_terms(InFlight& operation, int scalars) {
  const Route& route = *operation.route;
  const HomeFormat format = home_format(operation);
  std::vector<std::unique_ptr<MessageStream>> streams;  // [nodes]
  for (const int mate : operation.active->mates) {
    streams.push_back(
        mate < 0 ? nullptr
                 : std::make_unique<MessageStream>(
                       group_->mail(), mate, crossing_->head(Crossing::kTerms, operation.number)));
  }
  std::vector<const std::byte*> next(operation.sums.begin(), operation.sums.end());
  for (std::int64_t token = 0; token < route.num_tokens; ++token) {
    operation.first_share.push_back(operation.shares.size());
    const TokenGroups groups(grouping(), route, token * route.num_entries, route.num_entries);
    for (int i = 0; i < groups.count(); ++i) {
      const TokenGroups::Group group = groups[i];
      const int terms = static_cast<int>(group.entries.size());
      const std::byte*& at = next[group.node];
      operation.shares.push_back(at);
      if (streams[group.node] == nullptr) continue;
      at += crossing_->unit_bytes(terms, scalars, format);
      if (Status status = send_term(operation, *streams[group.node], group.entries); !status.ok())
        return status;
    }
  }
  operation.first_share.push_back(operation.shares.size());
  const auto lock = group_->mail().lock();
  for (const auto& stream : streams) {
    if (stream == nullptr) continue;
    stream->flush();
    crossing_->count_bytes(0, stream->bytes());
  }
  group_->mail().progress();
  return {};
}

// One unit: the rows of one token that one group has.
Status ExchangeState::send_term(const InFlight& operation, MessageStream& stream,
                                std::span<const std::int64_t> entries) {
  const Route& route = *operation.route;
  const ActiveSet& active = *route.active;
  const CombineArgs& args = operation.combine;
  std::byte* at = nullptr;
  if (Status status =
          append(operation, stream, asked_bytes(entries.size(), active.num_positions), at);
      !status.ok())
    return status;
  at = put(at, static_cast<std::int64_t>(entries.size()));
  for (const std::int64_t entry : entries) {
    const int member = route.refs[entry].member;
    at = put(at, TermHead{.owner = member,
                          .weight = weight_of(args, route,
                                              {entry / route.num_entries,
                                               static_cast<int>(entry % route.num_entries)})});
    for (int i = 0; i < active.num_positions; ++i) {
      const int position = (active.position + i) % active.num_positions;
      at = put(at, TermPlace{.rank = active.ranks[active.index(member, position)],
                             .row = static_cast<std::int32_t>(row_at(route, entry, position))});
    }
  }
  return {};
}

// The sums are here, and I have given the others theirs.
Status ExchangeState::await_sums(const InFlight& operation) {
  std::vector<bool> mates(size_);
  for (std::size_t node = 0; node < operation.sums.size(); ++node) {
    if (operation.sums[node] != nullptr) mates[operation.active->mates[node]] = true;
  }
  return await_crossing(operation, "sums", crossing_->summed(), operation.number, mates);
}

// No receive half returns before its duty is done.
Status ExchangeState::await_served(const InFlight& operation) {
  Status status = await_crossing(operation, "questions", crossing_->served(), operation.number,
                                 operation.active->clients);
  return status.ok() ? await_left(operation) : status;
}

Status ExchangeState::await_left(const InFlight& operation) {
  std::vector<bool> mates(size_);
  for (const int mate : operation.active->mates) {
    if (mate >= 0) mates[mate] = true;
  }
  return group_->wait({.operation = kind_name(operation.kind),
                       .number = operation.number,
                       .phase = "room",
                       .flags = crossing_->left(),
                       .stride_bytes = 0,
                       .value = crossing_->want_left(),
                       .limit = operation.deadline,
                       .crowded = crowded_,
                       .only = &mates});
}

Status ExchangeState::await_crossing(const InFlight& operation, const char* phase,
                                     const std::atomic<std::uint64_t>* flags, std::uint64_t value,
                                     const std::vector<bool>& only) {
  return group_->wait({.operation = kind_name(operation.kind),
                       .number = operation.number,
                       .phase = phase,
                       .flags = flags,
                       .stride_bytes = sizeof *flags,
                       .value = value,
                       .limit = operation.deadline,
                       .crowded = crowded_,
                       .only = &only});
}

}  // namespace ferry::internal
