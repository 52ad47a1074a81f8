// Combine: the source reads its expert rows where they lie, weights and sums them in float32, and
// writes each result once.   send half: publish outputs        receive half: wait for everybody's
// outputs -> reduce The mirror of dispatch.cc; steps and words as in docs/protocol.md.
#include <fmt/format.h>

#include <cstring>
#include <new>

#include "exchange/internode/forwarder.h"
#include "exchange/refusal.h"
#include "exchange/state.h"
#include "kernels/row_sums.h"

namespace ferry::internal {

Status ExchangeState::combine_send(const CombineArgs& args, Operation& operation) {
  operation = {};
  const std::int64_t began = now_ns();
  if (Status status = begin(); !status.ok()) return status;
  const auto deadline = args.deadline.count() > 0 ? args.deadline : group_->default_deadline();
  Status refusal = check_active(args.handle       ? args.handle.route()->active->chosen
                                : args.dispatched ? args.dispatched->active_ranks
                                                  : std::span<const int>());
  if (refusal.ok() && !active_->contains_me()) return stay_out(Kind::kCombine, operation);
  InFlight sent{.number = issued_, .kind = Kind::kCombine, .active = active_};
  sent.deadline = deadline;
  sent.combine = args;
  if (refusal.ok()) refusal = check_combine(args);
  if (refusal.ok()) refusal = find_route(sent);
  if (refusal.ok()) refusal = publish_outputs(sent);
  if (!refusal.ok()) return refuse(Kind::kCombine, refusal, deadline);
  publish(issued_, Stage::kDelivered);
  if (forwarder_) {
    if (Status status = cross_combine(sent); !status.ok()) return status;
  }
  sent.times.spans.push_back({"publish", began, now_ns()});
  operation.number = issued_;
  in_flight_.push_back(std::move(sent));
  return {};
}

// The handle's, or made anew from what dispatch was given; its slots follow when everybody's counts
// are here.
Status ExchangeState::find_route(InFlight& operation) const {
  const CombineArgs& args = operation.combine;
  if (args.handle) {
    operation.route = args.handle.route();
    if (Status status = check_combine_handle(args); !status.ok()) return status;
  } else {
    if (!args.dispatched)
      return refuse_with(rank_, "combine: the handle is empty, and dispatched is null");
    const std::int64_t num_tokens = args.dispatched->tokens.num_rows;
    if (num_tokens < 0 || num_tokens > config_.max_tokens)
      return refuse_with(rank_, "combine: {} tokens were dispatched, max_tokens is {}", num_tokens,
                         config_.max_tokens);
    Status status = make_route(*args.dispatched, operation.unplaced);
    if (!status.ok())
      return refuse_with(rank_, "combine: of what was dispatched: {}", status.message());
    operation.route = operation.unplaced;
    count_entries(rules(), *operation.route, count_row(rank_, operation.number));
  }
  const Route& route = *operation.route;
  if (Status status = check_weights(args, route); !status.ok()) return status;
  if (Status status = check_special(args, route); !status.ok()) return status;
  return check_combine_buffers(args, route);
}

// Rows and weights that lie in a pinned buffer of the window are read in place, all others are
// copied into a free one.
Status ExchangeState::publish_outputs(const InFlight& operation) {
  const CombineArgs& args = operation.combine;
  const Rows& rows = args.expert_rows;
  const std::size_t rows_bytes = extent_of(rows);
  const std::size_t weights_bytes =
      args.row_weights ? rows.num_rows * layout_.weights_per_row() * sizeof(float) : 0;
  const auto found = [&](const void* data, std::size_t bytes) {
    return args.in_place ? pool_->find(data, bytes).buffer : std::nullopt;
  };
  const std::optional<int> rows_in = found(rows.data, rows_bytes);
  const std::optional<int> weights_in = found(args.row_weights, weights_bytes);
  Record& mine =
      new_record(operation.number, {.kind = Kind::kCombine,
                                    .weights = args.row_weights ? Agreed::kYes
                                               : rows.num_rows  ? Agreed::kNo
                                                                : Agreed::kAny,
                                    .row_type = rows.dtype,
                                    .hidden = static_cast<std::uint32_t>(rows.hidden),
                                    .route = operation.unplaced ? 0 : operation.route->number});
  mine.num_rows = static_cast<std::int32_t>(rows.num_rows);
  mine.published = {.rows_offset = 0, .pitch_bytes = pitch_of(rows), .weights_offset = 0};
  if (rows_in) {
    mine.published.rows_offset = pool_->offset_of(rows.data);
    pool_->mark_published(*rows_in, operation.number);
  }
  if (weights_in) {
    mine.published.weights_offset = pool_->offset_of(args.row_weights);
    pool_->mark_published(*weights_in, operation.number);
  }
  const bool stage_rows = rows_bytes > 0 && !rows_in;
  const bool stage_weights = weights_bytes > 0 && !weights_in;
  return stage_rows || stage_weights ? stage(operation, mine, stage_rows, stage_weights) : Status{};
}

// A buffer that is free now is always there (docs/protocol.md); a combine must not wait before it
// is announced. Rows are copied in the wire format of combine, where that is smaller and nothing is
// added to them before they travel.
Status ExchangeState::stage(const InFlight& operation, Record& mine, bool rows, bool weights) {
  const CombineArgs& args = operation.combine;
  const int buffer = pool_->free_buffer(min_read_through()).value();
  const std::int64_t num_rows = args.expert_rows.num_rows;
  const std::size_t raw_row = dense_pitch(args.expert_rows);
  const std::size_t encoded_row = home_format(operation).wire_bytes();
  const bool encoded = rows && encoded_row < raw_row && operation.active->num_positions == 1;
  const std::size_t row_bytes = encoded ? encoded_row : raw_row;
  const std::size_t weights_bytes =
      weights ? num_rows * layout_.weights_per_row() * sizeof(float) : 0;
  if (!pool_->back(buffer, layout_.rows(), rows ? num_rows * row_bytes : 0) ||
      !pool_->back(buffer, layout_.weights(), weights_bytes)) {
    return {Code::kCapacity,
            fmt::format("combine: no memory to publish {} bytes of expert rows",
                        num_rows * row_bytes + weights_bytes),
            rank_};
  }
  pool_->mark_used(buffer);
  pool_->mark_published(buffer, mine.number);
  std::byte* data = pool_->data(buffer);
  if (rows) {
    mine.encoded = encoded;
    mine.published.pitch_bytes = static_cast<std::int64_t>(row_bytes);
    mine.published.rows_offset = pool_->offset_of(data + layout_.rows());
    copy_rows_in(operation, data + layout_.rows(), mine);
  }
  if (weights) {
    std::memcpy(data + layout_.weights(), args.row_weights, weights_bytes);
    mine.published.weights_offset = pool_->offset_of(data + layout_.weights());
  }
  return {};
}

// Received rows only: gaps and padding are never read. Where the slots are not known yet, all rows.
void ExchangeState::copy_rows_in(const InFlight& operation, std::byte* to, const Record& mine) {
  const Rows& from = operation.combine.expert_rows;
  const Route& route = *operation.route;
  const std::int64_t row_bytes = mine.published.pitch_bytes;
  const Stores stores = stores_for(from.num_rows * size_ * row_bytes);
  const auto copy_one = [&](std::int64_t row) {
    const std::byte* raw = static_cast<const std::byte*>(from.data) + row * pitch_of(from);
    std::byte* copied = to + row * row_bytes;
    if (!mine.encoded) return copy_row(copied, raw, row_bytes, stores);
    combine_wire_.encode(
        {.row = raw, .row_type = from.dtype, .hidden = from.hidden, .out = copied});
  };
  const auto copy = [&](std::int64_t first, std::int64_t count) {
    workers_.run(count, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = first + begin; row < first + end; ++row) copy_one(row);
      if (stores == Stores::kStreaming) stores_fence();
    });
    stats_.bytes_copied += count * row_bytes;
  };
  if (rank_major() || operation.unplaced) return copy(0, from.num_rows);
  for (std::size_t expert = 0; expert + 1 < route.expert_offsets.size(); ++expert) {
    copy(route.expert_offsets[expert], route.tokens_per_expert[expert]);
  }
}

Status ExchangeState::combine_recv(Operation operation) {
  InFlight sent;
  if (Status status = collect(operation, Kind::kCombine, sent); !status.ok()) return status;
  combine_times_ = std::move(sent.times);
  return {};
}

Status ExchangeState::reduce(InFlight& operation) {
  const std::int64_t began = now_ns();
  operation.times.wait_ns.resize(size_);
  const std::uint64_t up = progress_of(operation.number, Stage::kDelivered);
  Status status = await(operation, "outputs", up, &operation.times.wait_ns);
  const std::int64_t met = now_ns();
  if (status.ok()) status = examine(operation);
  if (status.ok() && operation.unplaced) status = place_combined(operation);
  if (!status.ok()) return status;
  const CombineArgs& args = operation.combine;
  if (args.out_topk_weights && agreed_weights(operation) == Agreed::kNo) {
    return {Code::kInvalidArgument,
            "combine: out_topk_weights needs row_weights, and no rank gave any", rank_};
  }
  const Route& route = *operation.route;
  const Stores stores = stores_for(route.total_rows * dense_pitch(args.expert_rows));
  find_outputs(operation);
  if (forwarder_) {
    if (status = await_sums(operation); !status.ok()) return status;
  }
  workers_.run(route.num_tokens, [&](std::int64_t begin, std::int64_t end) {
    const HomeFormat format = home_format(operation);
    Summands sum(format.hidden, format.wire_bytes()), part(format.hidden, format.wire_bytes());
    SubtreeSums subtrees(format.hidden,
                         forwarder_ ? forwarder_->sum_type(format.type) : format.type,
                         group_->topology().num_levels());
    HomeRows rows(format);
    for (std::int64_t token = begin; token < end; ++token) {
      reduce_token(operation, token, {sum, part, subtrees, rows, stores});
      if (args.out_topk_weights) bring_weights_home(operation, token);
    }
    if (stores == Stores::kStreaming) stores_fence();
  });
  operation.times.spans.push_back({"outputs", began, met});
  operation.times.spans.push_back({"reduce", met, now_ns()});
  stats_.bytes_pulled +=
      route.order.size() * route.active->num_positions * dense_pitch(args.expert_rows);
  ++stats_.combines;
  return forwarder_ ? await_served(operation) : Status{};
}

// The counts that came with the outputs say where everybody's rows are; all ranks see whose outputs
// do not fit them.
Status ExchangeState::place_combined(InFlight& operation) {
  Route& route = *operation.unplaced;
  const ActiveSet& active = *operation.active;
  place_rows(operation.number, route);
  for (std::size_t i = 0; i < active.ranks.size(); ++i) {
    const int member = static_cast<int>(i) % active.num_members;
    const std::int64_t rows = config_.layout == Layout::kPadded
                                  ? active.map.num_local(member) * config_.expert_capacity
                                  : route.section_rows[member];
    const Record& theirs = record(active.ranks[i], operation.number);
    if (theirs.num_rows == rows) continue;
    return {Code::kInvalidArgument,
            fmt::format("combine: rank {} gave {} expert rows, the top-k ids of all ranks place {} "
                        "there",
                        active.ranks[i], theirs.num_rows, rows),
            active.ranks[i]};
  }
  return {};
}

void ExchangeState::find_outputs(const InFlight& operation) {
  outputs_.clear();
  for (const int peer : operation.active->ranks) {
    if (!here(peer)) {
      outputs_.push_back({});
      continue;
    }
    const Record& theirs = record(peer, operation.number);
    const Published& rows = theirs.published;
    outputs_.push_back({view_.window(peer) + rows.rows_offset, rows.pitch_bytes,
                        reinterpret_cast<const float*>(view_.window(peer) + rows.weights_offset),
                        theirs.encoded});
  }
}

void ExchangeState::reduce_token(const InFlight& operation, std::int64_t token,
                                 const ReduceJob& job) const {
  const CombineArgs& args = operation.combine;
  const std::int64_t hidden = args.expert_rows.hidden;
  const std::size_t out_row = hidden * element_bytes(args.out_dtype);
  job.sum.clear();
  collect_terms(operation, token, job);
  const auto row_of = [&](const void* matrix) {
    return matrix ? static_cast<const std::byte*>(matrix) + token * out_row : nullptr;
  };
  std::byte* out = static_cast<std::byte*>(args.out) +
                   token * (args.out_pitch_bytes ? args.out_pitch_bytes : out_row);
  const bool norm = args.norm.residual != nullptr;
  float* sum = norm ? reinterpret_cast<float*>(job.sum.scratch()) : nullptr;
  job.sum.reduce(
      {.rows = nullptr,
       .weights = nullptr,
       .num_rows = 0,
       .row_type = args.expert_rows.dtype,
       .bias = {norm ? nullptr : row_of(args.bias[0]), norm ? nullptr : row_of(args.bias[1])},
       .out = norm ? static_cast<void*>(sum) : out,
       .out_type = norm ? DataType::kFp32 : args.out_dtype,
       .hidden = hidden,
       .stores = norm ? Stores::kCached : job.stores},
      args.topk_weights != nullptr);
  if (!norm) return;
  float unused = 0;
  normalise_row({.z = sum,
                 .gamma = args.norm.gamma,
                 .epsilon = args.norm.epsilon,
                 .type = args.out_dtype,
                 .hidden = hidden,
                 .out = out,
                 .y = static_cast<std::byte*>(args.norm.y) + token * out_row,
                 .rstd = args.norm.rstd ? args.norm.rstd + token : &unused});
}

// kRankMajor: sums [K] over ranks ascending, of each group of the outermost tier first. Expert
// layouts: the scalar of the row of (token, k).
void ExchangeState::bring_weights_home(const InFlight& operation, std::int64_t token) const {
  const Route& route = *operation.route;
  const std::int64_t first = token * route.num_entries;
  float* home = operation.combine.out_topk_weights + token * route.top_k;
  std::memset(home, 0, route.top_k * sizeof(float));
  RowScalars of_entry;
  find_scalars(operation, token, of_entry);
  if (!rank_major()) {
    for (int k = 0; k < route.top_k; ++k) {
      if (route.refs[first + k].sent()) home[k] = of_entry[k][0];
    }
    return;
  }
  const auto add = [&](float* sum, const float* scalars) {
    for (int j = 0; j < route.top_k; ++j) sum[j] += scalars[j];
  };
  if (!forwarder_ || forwarder_->exact()) {
    for (int k = 0; k < route.num_entries; ++k) {
      if (route.refs[first + k].sent()) add(home, of_entry[k].data());
    }
    return;
  }
  const Subtrees subtrees = subtrees_of(route, first, route.num_entries);
  const int outermost = forwarder_->table().outermost;
  for (int i = 0; i < subtrees.count();) {
    float sum[kMaxTopK] = {};
    const bool mine = subtrees[i].level > outermost;
    do {
      for (const std::int64_t entry : subtrees[i].items) add(sum, of_entry[entry - first].data());
      ++i;
    } while (mine && i < subtrees.count() && subtrees[i].level > outermost);
    add(home, sum);
  }
}

// What each row of a token brings: over several tensor-parallel positions the sum of theirs, mine
// first.
void ExchangeState::find_scalars(const InFlight& operation, std::int64_t token,
                                 RowScalars& of_entry) const {
  const Route& route = *operation.route;
  const ActiveSet& active = *route.active;
  const std::int64_t first = token * route.num_entries;
  const auto scalars = static_cast<int>(layout_.weights_per_row());
  for (int k = 0; k < route.num_entries; ++k) {
    const RowRef ref = route.refs[first + k];
    if (!ref.sent() || outputs_[active.index(ref.member, active.position)].rows == nullptr)
      continue;
    for (int i = 0; i < active.num_positions; ++i) {
      const int position = active.position_from_mine(i);
      const float* theirs = outputs_[active.index(ref.member, position)].weights +
                            row_at(route, first + k, position) * scalars;
      for (int j = 0; j < scalars; ++j)
        of_entry[k][j] = i == 0 ? theirs[j] : of_entry[k][j] + theirs[j];
    }
  }
  if (!forwarder_) return;
  const HomeFormat format = home_format(operation);
  const Subtrees subtrees = subtrees_of(route, first, route.num_entries);
  for (int i = 0; i < subtrees.count(); ++i) {
    const std::byte* share = operation.shares[operation.first_share[token] + i];
    if (share == nullptr) continue;
    share += forwarder_->scalars_at(static_cast<int>(subtrees[i].items.size()), format);
    for (const std::int64_t entry : subtrees[i].items) {
      std::memcpy(of_entry[entry - first].data(), share, scalars * sizeof(float));
      share += scalars * sizeof(float);
    }
  }
}

}  // namespace ferry::internal
