#include "exchange/dispatch/dispatch.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "exchange/arguments/argument_rules.h"
#include "exchange/dispatch/row_metadata.h"
#include "exchange/dispatch/send_rows.h"
#include "exchange/parts/place_rows.h"
#include "routing/placement.h"

namespace ferry::internal {

namespace {

// The number of rows for which a buffer is backed when it must grow: a quarter more than it needs,
// so that the next batch fits too, but not more than are reserved.
std::int64_t with_margin(std::int64_t rows, std::int64_t most) {
  return std::min(most, rows + rows / 4);
}

}  // namespace

Dispatch::Dispatch(ExchangeParts& exchange, const Issued& issued)
    : InFlight(issued), exchange_(exchange), setup_(*exchange.setup) {
  times.spans.reserve(5);  // one for each phase
}

void Dispatch::leave_empty() {
  unplaced_ = exchange_.new_route(issued());
  route_ = unplaced_;
}

Status Dispatch::announce(const DispatchArgs& args) {
  Status refusal = exchange_.protocol.check_depth(OperationKind::kDispatch);
  if (refusal.ok()) refusal = check_dispatch(setup_, args);
  if (refusal.ok()) refusal = check_window(*exchange_.pool, setup_.rank, args);
  if (refusal.ok()) {
    if (!args.cached) unplaced_ = exchange_.new_route(issued());
    refusal =
        args.cached ? check_cached(setup_, active(), args) : fill_route(setup_, args, *unplaced_);
  }
  if (!refusal.ok()) return refusal;
  route_ = args.cached ? args.cached.route() : unplaced_;
  return post(args);
}

// Publishes this rank's record, its row of the count matrix, and the list of its rows.
Status Dispatch::post(const DispatchArgs& args) {
  const WindowLayout& layout = setup_.layout;
  Pool& pool = *exchange_.pool;
  // A buffer is always free, because show(), hand_over() and allocate_outputs() limit the number of
  // live views.
  buffer_ = pool.free_buffer().value();
  pin_ = std::make_shared<Pin>(exchange_.pool, buffer_);
  FERRY_CHECK(pool.published(buffer_), <, number());
  std::int64_t rows = setup_.expected_section_rows();
  if (args.cached) rows = std::max(rows, route_->section_rows[active().member]);
  if (!pool.back_rows(buffer_, setup_.num_sections(), rows)) {
    return {Code::kCapacity,
            fmt::format("dispatch: no memory for a receive buffer of {} rows of {} bytes", rows,
                        layout.row_bytes()),
            setup_.rank};
  }
  Record& mine =
      exchange_.protocol.new_record(number(),
                                    {.kind = OperationKind::kDispatch,
                                     .cached = static_cast<bool>(args.cached),
                                     .weights = args.tokens.num_rows == 0 ? Agreed::kAny
                                                : args.topk_weights       ? Agreed::kYes
                                                                          : Agreed::kNo,
                                     .row_type = setup_.config.dtype,
                                     .hidden = static_cast<std::uint32_t>(setup_.config.hidden),
                                     .route = args.cached ? args.cached.route()->number : 0},
                                    args.digests.mine);
  mine.posted = {.section_rows = pool.backed_rows(buffer_),
                 .free_after = pool.published(buffer_),
                 .buffer = buffer_,
                 .growth = Code::kOk};
  FERRY_CHECK(mine.posted.section_rows, >=, rows);
  mine.num_rows = static_cast<std::int32_t>(args.tokens.num_rows);
  gave_weights_ = args.topk_weights != nullptr;
  if (setup_.sends()) {
    count_entries(setup_.rules(), *route_, exchange_.view.count_row(setup_.rank, number()));
    list_rows(exchange_, number(), *route_, args);
  }
  exchange_.protocol.publish(number(), Stage::kAnnounced);
  return {};
}

Status Dispatch::send(const DispatchArgs& args) {
  const std::int64_t counted = times.spans.back().end_ns;
  times.wait_ns.resize(exchange_.group->size());
  Protocol& protocol = exchange_.protocol;
  Status status =
      protocol.await(issued(), "counts", Stage::kAnnounced, {.wait_ns = &times.wait_ns});
  const std::int64_t met = now_ns();
  if (status.ok()) status = protocol.examine(issued(), args.digests.all);
  if (status.ok() && unplaced_) status = plan();
  if (status.ok()) status = guard_reuse();
  const std::int64_t placed = now_ns();
  if (!status.ok()) return protocol.fail(issued(), status);
  FERRY_CHECK(exchange_.pool->backed_rows(buffer_), >=, route_->section_rows[active().member]);
  RowSender sender(exchange_, issued(), *route_, args, placed);
  times.streaming_stores = sender.stores() == Stores::kStreaming;
  times.store_trial = sender.tries_stores();
  if (status = sender.send(buffer_); !status.ok()) return status;
  protocol.publish(number(), Stage::kDelivered);
  times.spans.push_back({"counts", counted, met});
  times.spans.push_back({"place", met, placed});
  times.spans.push_back({"send", placed, now_ns()});
  return {};
}

// Computes the slots. All ranks have the same count matrix now, so they come to the same slots
// without more messages.
Status Dispatch::plan() {
  Status placed = place_rows(exchange_, issued(), *unplaced_, &times.wait_ns);
  if (!placed.ok()) return placed;
  FERRY_CHECK(std::ssize(route_->section_rows), ==, active().num_members);
  if (setup_.rank_major()) {
    for (const int peer : active().ranks)
      unplaced_->tokens_per_rank.push_back(exchange_.record(peer, number()).num_rows);
  }
  const WindowLayout& layout = setup_.layout;
  for (int member = 0; member < active().num_members; ++member) {
    const std::int64_t rows = route_->section_rows[member];
    if (rows <= layout.max_section_rows()) continue;
    const int rank = active().ranks[member];
    return {
        Code::kCapacity,
        fmt::format("dispatch: rank {} would receive {} rows{}, the capacity is {}", rank, rows,
                    setup_.num_sections() > 1 ? " for one expert" : "", layout.max_section_rows()),
        rank};
  }
  return grow();
}

// Ranks whose posted buffer is too small add memory to it. All ranks wait for them, and see the
// same outcome.
Status Dispatch::grow() {
  const std::vector<int>& ranks = active().ranks;
  std::vector<bool> growers;  // [all ranks]; empty: none
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::int64_t backed = exchange_.record(ranks[i], number()).posted.section_rows;
    if (route_->section_rows[i % active().num_members] <= backed) continue;
    growers.resize(exchange_.group->size());
    growers[ranks[i]] = true;
  }
  if (growers.empty()) return {};
  const std::int64_t needed = route_->section_rows[active().member];
  if (growers[setup_.rank]) {
    const std::int64_t most = setup_.layout.max_section_rows();
    const int sections = setup_.num_sections();
    const bool grown = exchange_.pool->back_rows(buffer_, sections, with_margin(needed, most)) ||
                       exchange_.pool->back_rows(buffer_, sections, needed);
    exchange_.record(setup_.rank, number()).posted.growth = grown ? Code::kOk : Code::kCapacity;
    ++exchange_.stats.window_growths;
    exchange_.protocol.publish(number(), Stage::kGrown);
  }
  Status status = exchange_.protocol.await(issued(), "growth", Stage::kGrown, {.only = &growers});
  if (!status.ok()) return status;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const int peer = ranks[i];
    if (!growers[peer] || exchange_.record(peer, number()).posted.growth == Code::kOk) continue;
    return {Code::kCapacity,
            fmt::format("dispatch: rank {} needs {} rows of {} bytes and memory was refused", peer,
                        route_->section_rows[i % active().num_members], setup_.layout.row_bytes()),
            peer};
  }
  return {};
}

// Waits until no rank reads the memory that this rank's rows will overwrite. In a loop of one
// dispatch and its combine this holds already.
Status Dispatch::guard_reuse() {
  std::uint64_t free_after = 0;
  for (const int peer : active().ranks)
    free_after = std::max(free_after, exchange_.record(peer, number()).posted.free_after);
  Protocol& protocol = exchange_.protocol;
  if (protocol.min_read_through() >= free_after) return {};
  if (Status status = protocol.settle(free_after); !status.ok()) return status;
  return protocol.await_read_through(issued(), free_after);
}

std::vector<bool> Dispatch::ready_experts() const {
  const std::vector<std::int64_t>& running = route_->received.running_counts;
  std::vector<bool> ready(route_->received.tokens_per_expert.size(), true);
  const std::size_t block = ready.size() * active().num_members;  // counts of one tp_rank
  std::vector<bool> late(active().ranks.size());
  for (std::size_t i = 0; i < late.size(); ++i)
    late[i] = !exchange_.protocol.delivered(issued(), active().ranks[i]);
  for (std::size_t i = 0; i < running.size(); ++i) {
    const std::size_t tp_rank = active().tp_rank_from_mine(static_cast<int>(i / block));
    const bool sends = running[i] > (i % block == 0 ? 0 : running[i - 1]);
    const std::size_t member = i % active().num_members;
    if (sends && late[tp_rank * active().num_members + member])
      ready[i % block / active().num_members] = false;
  }
  return ready;
}

Status Dispatch::receive() {
  const std::int64_t began = now_ns();
  Protocol& protocol = exchange_.protocol;
  Status status = protocol.await(issued(), "rows", Stage::kDelivered, {.wait_ns = &times.wait_ns});
  times.spans.push_back({"receive", began, now_ns()});
  if (!status.ok()) return status;
  const Agreed weights = protocol.agreed_weights(issued());
  weights_ = weights == Agreed::kYes || (weights == Agreed::kAny && gave_weights_);
  return status;
}

}  // namespace ferry::internal
