// Dispatch: my tokens go straight to their final rows at the ranks that own their experts.
//   send half:    count -> place -> send rows        receive half: wait for everybody's rows
// The mirror of combine.cc; rows go out in send_rows.cc and are handed over in received.cc; steps
// and words as in docs/protocol.md.
#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "exchange/internode/forwarder.h"
#include "exchange/state.h"

namespace ferry::internal {

namespace {

// Rows a buffer is backed for when it must grow: room for the next batch too, within the
// reservation.
std::int64_t with_margin(std::int64_t rows, std::int64_t most) {
  return std::min(most, rows + rows / 4);
}

}  // namespace

Status ExchangeState::dispatch_send(const DispatchArgs& args, Operation& operation) {
  operation = {};
  const std::int64_t began = now_ns();
  if (Status status = begin(); !status.ok()) return status;
  const auto deadline = args.deadline.count() > 0 ? args.deadline : group_->default_deadline();
  Status refusal = check_active(args.cached && args.active_ranks.empty()
                                    ? std::span<const int>(args.cached.route()->active->chosen)
                                    : args.active_ranks);
  if (refusal.ok() && !active_->contains_me()) return stay_out(Kind::kDispatch, operation);
  if (refusal.ok()) refusal = check_dispatch(args);
  std::shared_ptr<Route> fresh;
  if (refusal.ok()) refusal = args.cached ? check_cached(args) : make_route(args, fresh);
  InFlight sent{.number = issued_, .kind = Kind::kDispatch, .active = active_};
  sent.deadline = deadline;
  sent.times.wait_ns.resize(size_);
  if (refusal.ok()) {
    sent.route = fresh ? fresh : args.cached.route();
    refusal = post(sent, args);
  }
  if (!refusal.ok()) return refuse(Kind::kDispatch, refusal, deadline);
  const std::int64_t counted = now_ns();
  Status status =
      await(sent, "counts", progress_of(sent.number, Stage::kAnnounced), &sent.times.wait_ns);
  const std::int64_t met = now_ns();
  if (status.ok()) status = examine(sent);
  if (status.ok() && fresh) status = plan(sent, *fresh);
  if (status.ok()) status = guard_reuse(sent);
  const std::int64_t placed = now_ns();
  if (!status.ok()) {
    if (status.group_usable()) conclude(sent.number);
    return leave(sent, status);
  }
  if (status = send_rows(sent, args); !status.ok()) return status;
  publish(sent.number, Stage::kDelivered);
  sent.times.spans = {{"count", began, counted},
                      {"counts", counted, met},
                      {"place", met, placed},
                      {"send", placed, now_ns()}};
  operation.number = sent.number;
  in_flight_.push_back(std::move(sent));
  return {};
}

// Says which buffer receives, and what I send: the record, and my row of the count matrix.
Status ExchangeState::post(InFlight& operation, const DispatchArgs& args) {
  operation.buffer =
      pool_->free_buffer().value();  // live views are limited, see copy_out and allocate_outputs
  operation.pin = std::make_shared<Pin>(pool_, operation.buffer);
  std::int64_t rows = layout_.expected_section_rows();
  if (args.cached) rows = std::max(rows, operation.route->section_rows[operation.active->member]);
  if (!pool_->back_rows(operation.buffer, num_sections(), rows)) {
    return {Code::kCapacity,
            fmt::format("dispatch: no memory for a receive buffer of {} rows of {} bytes", rows,
                        layout_.row_bytes()),
            rank_};
  }
  Record& mine =
      new_record(operation.number, {.kind = Kind::kDispatch,
                                    .cached = static_cast<bool>(args.cached),
                                    .weights = args.topk_weights      ? Agreed::kYes
                                               : args.tokens.num_rows ? Agreed::kNo
                                                                      : Agreed::kAny,
                                    .row_type = config_.dtype,
                                    .hidden = static_cast<std::uint32_t>(config_.hidden),
                                    .route = args.cached ? args.cached.route()->number : 0});
  mine.posted = {.section_rows = pool_->backed_rows(operation.buffer),
                 .free_after = pool_->published(operation.buffer),
                 .buffer = operation.buffer,
                 .growth = Code::kOk};
  if (!args.cached) count_entries(rules(), *operation.route, count_row(rank_, operation.number));
  publish(operation.number, Stage::kAnnounced);
  return {};
}

// All ranks hold the same matrix now and agree on every slot without more talk.
Status ExchangeState::plan(InFlight& operation, Route& route) {
  place_rows(operation.number, route);
  for (int member = 0; member < operation.active->num_members; ++member) {
    if (route.section_rows[member] <= layout_.max_section_rows()) continue;
    const int rank = operation.active->ranks[member];
    return {Code::kCapacity,
            fmt::format("dispatch: rank {} would receive {} rows{}, the capacity is {}", rank,
                        route.section_rows[member], num_sections() > 1 ? " for one expert" : "",
                        layout_.max_section_rows()),
            rank};
  }
  return grow(operation, route);
}

void ExchangeState::place_rows(std::uint64_t number, Route& route) {
  count_rows_.clear();
  for (const int peer : route.active->ranks) count_rows_.push_back(count_row(peer, number));
  place(rules(), count_rows_, sums_, route);
}

// Ranks whose posted buffer is too small back it with more memory; everybody waits for them and
// sees the same outcome.
Status ExchangeState::grow(InFlight& operation, const Route& route) {
  const ActiveSet& active = *operation.active;
  std::vector<bool> growers(size_);
  bool any = false;
  for (std::size_t i = 0; i < active.ranks.size(); ++i) {
    const std::int64_t backed = record(active.ranks[i], operation.number).posted.section_rows;
    const bool small = route.section_rows[i % active.num_members] > backed;
    growers[active.ranks[i]] = small;
    any = any || small;
  }
  if (!any) return {};
  const std::int64_t needed = route.section_rows[active.member];
  if (growers[rank_]) {
    const bool grown = pool_->back_rows(operation.buffer, num_sections(),
                                        with_margin(needed, layout_.max_section_rows())) ||
                       pool_->back_rows(operation.buffer, num_sections(), needed);
    record(rank_, operation.number).posted.growth = grown ? Code::kOk : Code::kCapacity;
    ++stats_.window_growths;
    publish(operation.number, Stage::kGrown);
  }
  if (Status status = await(operation, "growth", progress_of(operation.number, Stage::kGrown),
                            nullptr, &growers);
      !status.ok())
    return status;
  for (std::size_t i = 0; i < active.ranks.size(); ++i) {
    const int peer = active.ranks[i];
    if (!growers[peer] || record(peer, operation.number).posted.growth == Code::kOk) continue;
    return {Code::kCapacity,
            fmt::format("dispatch: rank {} needs {} rows of {} bytes and memory was refused", peer,
                        route.section_rows[i % active.num_members], layout_.row_bytes()),
            peer};
  }
  return {};
}

// Nobody may still read what my rows will overwrite. In the plain loop this holds already.
Status ExchangeState::guard_reuse(const InFlight& operation) {
  std::uint64_t free_after = 0;
  for (const int peer : operation.active->ranks)
    free_after = std::max(free_after, record(peer, operation.number).posted.free_after);
  if (min_read_through() >= free_after) return {};
  if (Status status = settle(free_after); !status.ok()) return status;
  return await_read_through(operation, free_after);
}

Status ExchangeState::receive(InFlight& operation) {
  const std::int64_t began = now_ns();
  Status status = await(operation, "rows", progress_of(operation.number, Stage::kDelivered),
                        &operation.times.wait_ns);
  operation.times.spans.push_back({"receive", began, now_ns()});
  operation.weights = status.ok() && agreed_weights(operation) == Agreed::kYes;
  return status;
}

Status ExchangeState::dispatch_recv(Operation operation, Received& received) {
  InFlight sent;
  received.release();
  if (Status status = collect(operation, Kind::kDispatch, sent); !status.ok()) return status;
  if (!sent.route->active->contains_me()) {
    received.handle = Handle(sent.route);
    return {};
  }
  fill_received(sent, received);
  pool_->mark_used(sent.buffer);
  stats_.rows_received += sent.route->num_rows;
  dispatch_times_ = std::move(sent.times);
  sent.pin.reset();
  if (pool_->num_pinned() > layout_.live_buffers()) copy_out(received);
  return {};
}

}  // namespace ferry::internal
