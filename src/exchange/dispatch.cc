// Dispatch: my tokens go straight to their final rows at the ranks that own their experts.
//   send half:    count -> place -> send rows        receive half: wait for everybody's rows
// The mirror of combine.cc; steps and words as in docs/protocol.md.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>

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
  if (Status refusal = check_dispatch(args); !refusal.ok())
    return refuse(Kind::kDispatch, refusal, deadline);
  InFlight sent{.number = issued_, .kind = Kind::kDispatch, .deadline = deadline};
  sent.times.wait_ns.resize(size_);
  if (Status status = post(sent, args); !status.ok())
    return refuse(Kind::kDispatch, status, deadline);
  const std::int64_t counted = now_ns();
  auto fresh = args.cached ? nullptr : std::make_shared<Route>();
  sent.route = fresh ? fresh : args.cached.route();
  Status status =
      await(sent, "counts", progress_of(sent.number, Stage::kAnnounced), &sent.times.wait_ns);
  const std::int64_t met = now_ns();
  if (status.ok()) status = examine(sent.number);
  if (status.ok() && fresh) status = plan(sent, *fresh);
  if (status.ok()) status = guard_reuse(sent);
  const std::int64_t placed = now_ns();
  if (!status.ok()) {
    if (status.group_usable()) conclude(sent.number);
    return status;
  }
  send_rows(sent, args);
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
  if (args.cached) rows = std::max(rows, args.cached.route()->section_rows[rank_]);
  if (!pool_->back_rows(operation.buffer, num_sections(), rows)) {
    return {Code::kCapacity,
            fmt::format("dispatch: no memory for a receive buffer of {} rows of {} bytes", rows,
                        layout_.row_bytes()),
            rank_};
  }
  Record& mine = *new (&record(rank_, operation.number)) Record{};
  mine.number = operation.number;
  mine.terms = {.kind = Kind::kDispatch,
                .cached = static_cast<bool>(args.cached),
                .weights = args.topk_weights      ? Agreed::kYes
                           : args.tokens.num_rows ? Agreed::kNo
                                                  : Agreed::kAny,
                .row_type = config_.dtype,
                .hidden = config_.hidden,
                .route = args.cached ? args.cached.route()->number : 0};
  mine.posted = {.section_rows = pool_->backed_rows(operation.buffer),
                 .free_after = pool_->published(operation.buffer),
                 .buffer = operation.buffer,
                 .growth = Code::kOk};
  if (!args.cached)
    count_entries(rules(), {experts_, args.tokens.num_rows, config_.top_k},
                  count_row(rank_, operation.number));
  publish(operation.number, Stage::kAnnounced);
  return {};
}

// All ranks hold the same matrix now and agree on every slot without more talk.
Status ExchangeState::plan(InFlight& operation, Route& route) {
  count_rows_.resize(size_);
  for (int peer = 0; peer < size_; ++peer) count_rows_[peer] = count_row(peer, operation.number);
  route.exchange_id = id_;
  route.number = operation.number;
  const auto num_tokens = static_cast<std::int64_t>(experts_.size()) / config_.top_k;
  place(rules(), {experts_, num_tokens, config_.top_k}, count_rows_, sums_, route);
  for (int peer = 0; peer < size_; ++peer) {
    if (route.section_rows[peer] <= layout_.max_section_rows()) continue;
    return {Code::kCapacity,
            fmt::format("dispatch: rank {} would receive {} rows{}, the capacity is {}", peer,
                        route.section_rows[peer], num_sections() > 1 ? " for one expert" : "",
                        layout_.max_section_rows()),
            peer};
  }
  return grow(operation, route);
}

// Ranks whose posted buffer is too small back it with more memory; everybody waits for them and
// sees the same outcome.
Status ExchangeState::grow(InFlight& operation, const Route& route) {
  std::vector<bool> growers(size_);
  for (int peer = 0; peer < size_; ++peer) {
    growers[peer] = route.section_rows[peer] > record(peer, operation.number).posted.section_rows;
  }
  if (std::find(growers.begin(), growers.end(), true) == growers.end()) return {};
  if (growers[rank_]) {
    const std::int64_t needed = route.section_rows[rank_];
    const bool grown = pool_->back_rows(operation.buffer, num_sections(),
                                        with_margin(needed, layout_.max_section_rows())) ||
                       pool_->back_rows(operation.buffer, num_sections(), needed);
    record(rank_, operation.number).posted.growth = grown ? Code::kOk : Code::kCapacity;
    ++stats_.window_growths;
    publish(operation.number, Stage::kGrown);
  }
  Status status =
      await(operation, "growth", progress_of(operation.number, Stage::kGrown), nullptr, &growers);
  for (int peer = 0; peer < size_ && status.ok(); ++peer) {
    if (!growers[peer] || record(peer, operation.number).posted.growth == Code::kOk) continue;
    status = {Code::kCapacity,
              fmt::format("dispatch: rank {} needs {} rows of {} bytes and memory was refused",
                          peer, route.section_rows[peer], layout_.row_bytes()),
              peer};
  }
  return status;
}

// Nobody may still read what my rows will overwrite. In the plain loop this holds already.
Status ExchangeState::guard_reuse(const InFlight& operation) {
  std::uint64_t free_after = 0;
  for (int peer = 0; peer < size_; ++peer)
    free_after = std::max(free_after, record(peer, operation.number).posted.free_after);
  if (min_read_through() >= free_after) return {};
  if (Status status = settle(free_after); !status.ok()) return status;
  return await_read_through(operation, free_after);
}

void ExchangeState::send_rows(const InFlight& operation, const DispatchArgs& args) {
  const Route& route = *operation.route;
  const Stores stores = stores_for(route.total_rows * layout_.row_bytes());
  posted_.resize(size_);
  for (int peer = 0; peer < size_; ++peer) {
    posted_[peer] = window(peer) + layout_.buffer(record(peer, operation.number).posted.buffer);
  }
  crew_.run(route.num_tokens, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t token = begin; token < end; ++token) {
      send_token(args, route, token, stores);
    }
    if (stores == Stores::kStreaming) stores_fence();
  });
  send_all_metadata(args, route);
  clear_gaps(operation);
  stats_.rows_sent += route.order.size();
  stats_.bytes_sent += route.order.size() * layout_.row_bytes();
  ++stats_.dispatches;
}

void ExchangeState::send_token(const DispatchArgs& args, const Route& route, std::int64_t token,
                               Stores stores) {
  const int top_k = route.top_k;
  const RowRef* refs = route.refs.data() + token * top_k;
  const std::size_t row_bytes = layout_.row_bytes();
  const std::size_t pitch = args.tokens.pitch_bytes ? args.tokens.pitch_bytes : row_bytes;
  const std::byte* row = static_cast<const std::byte*>(args.tokens.data) + token * pitch;
  if (token + 1 < route.num_tokens) prefetch_row(row + pitch, row_bytes);
  void* destinations[kMaxRows];
  int count = 0;
  for (int k = 0; k < top_k; ++k) {
    if (refs[k].rank < 0) continue;
    destinations[count++] = posted_[refs[k].rank] + layout_.rows() + refs[k].row * row_bytes;
  }
  copy_row_to_many(destinations, count, row, row_bytes, stores);
}

// In the order of the rows, so that lines which hold the metadata of several rows are fetched once
// and not taken from the sources next door again and again. Starts at a different peer per rank.
void ExchangeState::send_all_metadata(const DispatchArgs& args, const Route& route) {
  const auto count = static_cast<std::int64_t>(route.order.size());
  const std::int64_t first = count * rank_ / size_;
  crew_.run(count, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = first + begin; i < first + end; ++i) {
      const std::int32_t entry = route.order[i < count ? i : i - count];
      send_metadata(args, route, entry / route.top_k, entry % route.top_k);
    }
  });
}

// Source triplet and weights of the row that refs[k] names.
void ExchangeState::send_metadata(const DispatchArgs& args, const Route& route, std::int64_t token,
                                  int k) {
  const RowRef ref = route.refs[token * route.top_k + k];
  std::byte* buffer = posted_[ref.rank];
  const float* weights = args.topk_weights ? args.topk_weights + token * route.top_k : nullptr;
  auto* source =
      reinterpret_cast<std::int32_t*>(buffer + layout_.sources()) + std::int64_t{ref.row} * 3;
  source[0] = rank_;
  source[1] = static_cast<std::int32_t>(token);
  source[2] = k;
  auto* row_weights =
      reinterpret_cast<float*>(buffer + layout_.weights()) + ref.row * layout_.weights_per_row();
  if (!rank_major()) {
    if (weights) row_weights[0] = weights[k];
    return;
  }
  const std::int32_t* experts = route.experts.data() + token * route.top_k;
  auto* ids = reinterpret_cast<std::int32_t*>(buffer + layout_.topk_ids()) +
              ref.row * layout_.ids_per_row();
  source[2] = -1;
  for (int j = 0; j < route.top_k; ++j) {
    const bool here = experts[j] >= 0 && map_.owner(experts[j]) == ref.rank;
    if (here && source[2] < 0) source[2] = j;
    ids[j] = here ? map_.local(experts[j]) : -1;
    if (weights) row_weights[j] = here ? weights[j] : 0.0f;
  }
}

// Gap rows of my own buffer: source -1, weight 0, and zero rows on request. Padding is left alone
// unless asked for.
void ExchangeState::clear_gaps(const InFlight& operation) {
  const Route& route = *operation.route;
  const bool padded = config_.layout == Layout::kPadded;
  if (rank_major() || (padded && !config_.zero_gaps) || (!padded && config_.expert_alignment == 1))
    return;
  std::byte* buffer = pool_->data(operation.buffer);
  for (std::size_t expert = 0; expert + 1 < route.expert_offsets.size(); ++expert) {
    const std::int64_t first = route.expert_offsets[expert] + route.tokens_per_expert[expert];
    const std::int64_t count = route.expert_offsets[expert + 1] - first;
    if (count == 0) continue;
    std::memset(buffer + layout_.sources() + first * 3 * sizeof(std::int32_t), 0xff,
                count * 3 * sizeof(std::int32_t));
    std::memset(buffer + layout_.weights() + first * sizeof(float), 0, count * sizeof(float));
    if (config_.zero_gaps)
      std::memset(buffer + layout_.rows() + first * layout_.row_bytes(), 0,
                  count * layout_.row_bytes());
  }
}

Status ExchangeState::receive(InFlight& operation) {
  const std::int64_t began = now_ns();
  Status status = await(operation, "rows", progress_of(operation.number, Stage::kDelivered),
                        &operation.times.wait_ns);
  operation.times.spans.push_back({"receive", began, now_ns()});
  operation.weights = status.ok() && agreed_weights(operation.number) == Agreed::kYes;
  return status;
}

Status ExchangeState::dispatch_recv(Operation operation, Received& received) {
  InFlight sent;
  received.release();
  if (Status status = collect(operation, Kind::kDispatch, sent); !status.ok()) return status;
  fill_received(sent, received);
  pool_->mark_used(sent.buffer);
  stats_.rows_received += sent.route->num_rows;
  dispatch_times_ = std::move(sent.times);
  sent.pin.reset();
  if (pool_->num_pinned() > layout_.live_buffers()) copy_out(received);
  return {};
}

void ExchangeState::fill_received(const InFlight& operation, Received& received) const {
  const std::byte* buffer = pool_->data(operation.buffer);
  const std::size_t rows = operation.route->num_rows;
  received.data = pool_->data(operation.buffer) + layout_.rows();
  received.num_rows = operation.route->num_rows;
  received.hidden = config_.hidden;
  received.dtype = config_.dtype;
  received.sources = {reinterpret_cast<const std::int32_t*>(buffer + layout_.sources()), rows * 3};
  if (operation.weights) {
    received.weights = {reinterpret_cast<const float*>(buffer + layout_.weights()),
                        rows * layout_.weights_per_row()};
  }
  received.topk_ids = {reinterpret_cast<const std::int32_t*>(buffer + layout_.topk_ids()),
                       rows * layout_.ids_per_row()};
  received.handle = Handle(operation.route);
  received.pin = operation.pin;
}

// Too many views are alive: this result moves to memory of its own, and its buffer is free again.
void ExchangeState::copy_out(Received& received) {
  const std::size_t rows_bytes = received.num_rows * layout_.row_bytes();
  const std::size_t parts[] = {rows_bytes, received.sources.size_bytes(),
                               received.weights.size_bytes(), received.topk_ids.size_bytes()};
  const void* const from[] = {received.data, received.sources.data(), received.weights.data(),
                              received.topk_ids.data()};
  std::size_t offsets[4], total = 0;
  for (int i = 0; i < 4; ++i) {
    offsets[i] = total;
    total += (parts[i] + 63) / 64 * 64;
  }
  std::shared_ptr<std::byte[]> memory(new std::byte[total]);
  for (int i = 0; i < 4; ++i) {
    if (parts[i] > 0) std::memcpy(memory.get() + offsets[i], from[i], parts[i]);
  }
  received.data = memory.get();
  received.sources = {reinterpret_cast<const std::int32_t*>(memory.get() + offsets[1]),
                      received.sources.size()};
  received.weights = {reinterpret_cast<const float*>(memory.get() + offsets[2]),
                      received.weights.size()};
  received.topk_ids = {reinterpret_cast<const std::int32_t*>(memory.get() + offsets[3]),
                       received.topk_ids.size()};
  received.pin = std::move(memory);
  stats_.bytes_copied += rows_bytes;
}

}  // namespace ferry::internal
