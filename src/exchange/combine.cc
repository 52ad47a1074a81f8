// Combine: the source reads its expert rows where they lie, weights and sums them in float32, and
// writes each result once.   send half: publish outputs        receive half: wait for everybody's
// outputs -> reduce The mirror of dispatch.cc; steps and words as in docs/protocol.md.
#include <fmt/format.h>

#include <cstring>
#include <new>

#include "exchange/state.h"

namespace ferry::internal {

Status ExchangeState::combine_send(const CombineArgs& args, Operation& operation) {
  operation = {};
  const std::int64_t began = now_ns();
  if (Status status = begin(); !status.ok()) return status;
  const auto deadline = args.deadline.count() > 0 ? args.deadline : group_->default_deadline();
  if (Status refusal = check_combine(args); !refusal.ok())
    return refuse(Kind::kCombine, refusal, deadline);
  InFlight sent{.number = issued_, .kind = Kind::kCombine, .deadline = deadline};
  sent.route = args.handle.route();
  sent.combine = args;
  Record& mine = *new (&record(rank_, issued_)) Record{};
  mine.number = issued_;
  mine.terms = {.kind = Kind::kCombine,
                .weights = args.row_weights            ? Agreed::kYes
                           : args.expert_rows.num_rows ? Agreed::kNo
                                                       : Agreed::kAny,
                .row_type = args.expert_rows.dtype,
                .hidden = args.expert_rows.hidden,
                .route = sent.route->number};
  if (Status status = publish_outputs(sent, mine); !status.ok())
    return refuse(Kind::kCombine, status, deadline);
  publish(issued_, Stage::kDelivered);
  sent.times.spans.push_back({"publish", began, now_ns()});
  operation.number = issued_;
  in_flight_.push_back(std::move(sent));
  return {};
}

// Rows and weights that lie in a pinned buffer of the window are read in place, all others are
// copied into a free one.
Status ExchangeState::publish_outputs(const InFlight& operation, Record& mine) {
  const CombineArgs& args = operation.combine;
  const Route& route = *operation.route;
  const std::size_t row_bytes = args.expert_rows.hidden * element_bytes(args.expert_rows.dtype);
  const std::size_t rows_bytes =
      route.num_rows ? (route.num_rows - 1) * pitch_of(args.expert_rows) + row_bytes : 0;
  const std::size_t weights_bytes =
      args.row_weights ? route.num_rows * layout_.weights_per_row() * sizeof(float) : 0;
  const std::optional<int> rows_in = pool_->find(args.expert_rows.data, rows_bytes).buffer;
  const std::optional<int> weights_in = pool_->find(args.row_weights, weights_bytes).buffer;
  mine.published = {
      .rows_offset = 0, .pitch_bytes = pitch_of(args.expert_rows), .weights_offset = 0};
  if (rows_in) {
    mine.published.rows_offset = pool_->offset_of(args.expert_rows.data);
    pool_->mark_published(*rows_in, operation.number);
  }
  if (weights_in) {
    mine.published.weights_offset = pool_->offset_of(args.row_weights);
    pool_->mark_published(*weights_in, operation.number);
  }
  const bool stage_rows = rows_bytes > 0 && !rows_in;
  const bool stage_weights = weights_bytes > 0 && !weights_in;
  return stage_rows || stage_weights ? stage(args, mine, stage_rows, stage_weights) : Status{};
}

// A buffer that is free now is always there (docs/protocol.md); a combine must not wait before it
// is announced.
Status ExchangeState::stage(const CombineArgs& args, Record& mine, bool rows, bool weights) {
  const int buffer = pool_->free_buffer(min_read_through()).value();
  const Route& route = *args.handle.route();
  const std::size_t rows_bytes =
      rows ? route.num_rows * args.expert_rows.hidden * element_bytes(args.expert_rows.dtype) : 0;
  const std::size_t weights_bytes =
      weights ? route.num_rows * layout_.weights_per_row() * sizeof(float) : 0;
  if (!pool_->back(buffer, layout_.rows(), rows_bytes) ||
      !pool_->back(buffer, layout_.weights(), weights_bytes)) {
    return {Code::kCapacity,
            fmt::format("combine: no memory to publish {} bytes of expert rows",
                        rows_bytes + weights_bytes),
            rank_};
  }
  pool_->mark_used(buffer);
  pool_->mark_published(buffer, mine.number);
  std::byte* data = pool_->data(buffer);
  if (rows) {
    copy_rows_in(args.expert_rows, route, data + layout_.rows());
    mine.published.rows_offset = pool_->offset_of(data + layout_.rows());
    mine.published.pitch_bytes = args.expert_rows.hidden * element_bytes(args.expert_rows.dtype);
  }
  if (weights) {
    std::memcpy(data + layout_.weights(), args.row_weights, weights_bytes);
    mine.published.weights_offset = pool_->offset_of(data + layout_.weights());
  }
  return {};
}

// Received rows only: gaps and padding are never read.
void ExchangeState::copy_rows_in(const Rows& from, const Route& route, std::byte* to) {
  const std::size_t row_bytes = from.hidden * element_bytes(from.dtype);
  const Stores stores = stores_for(route.total_rows * row_bytes);
  const auto copy = [&](std::int64_t first, std::int64_t count) {
    crew_.run(count, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = first + begin; row < first + end; ++row) {
        copy_row(to + row * row_bytes,
                 static_cast<const std::byte*>(from.data) + row * pitch_of(from), row_bytes,
                 stores);
      }
      if (stores == Stores::kStreaming) stores_fence();
    });
    stats_.bytes_copied += count * row_bytes;
  };
  if (rank_major()) return copy(0, route.num_rows);
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
  if (status.ok()) status = examine(operation.number);
  if (!status.ok()) return status;
  const CombineArgs& args = operation.combine;
  if (args.out_topk_weights && agreed_weights(operation.number) == Agreed::kNo) {
    return {Code::kInvalidArgument,
            "combine: out_topk_weights needs row_weights, and no rank gave any", rank_};
  }
  const Route& route = *operation.route;
  const std::uint64_t row_bytes = args.expert_rows.hidden * element_bytes(args.expert_rows.dtype);
  const Stores stores = stores_for(route.total_rows * row_bytes);
  find_outputs(operation.number);
  crew_.run(route.num_tokens, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t token = begin; token < end; ++token) {
      reduce_token(args, token, stores);
      if (args.out_topk_weights) bring_weights_home(args, token);
    }
    if (stores == Stores::kStreaming) stores_fence();
  });
  operation.times.spans.push_back({"outputs", began, met});
  operation.times.spans.push_back({"reduce", met, now_ns()});
  for (const RowRef& ref : route.refs) stats_.bytes_pulled += ref.rank >= 0 ? row_bytes : 0;
  ++stats_.combines;
  return {};
}

void ExchangeState::find_outputs(std::uint64_t number) {
  outputs_.resize(size_);
  for (int peer = 0; peer < size_; ++peer) {
    const Published& theirs = record(peer, number).published;
    outputs_[peer] = {window(peer) + theirs.rows_offset, theirs.pitch_bytes,
                      reinterpret_cast<const float*>(window(peer) + theirs.weights_offset)};
  }
}

void ExchangeState::reduce_token(const CombineArgs& args, std::int64_t token, Stores stores) const {
  const Route& route = *args.handle.route();
  const RowRef* refs = route.refs.data() + token * route.top_k;
  const std::size_t row_bytes = args.expert_rows.hidden * element_bytes(args.expert_rows.dtype);
  const auto address = [this](const RowRef& ref) {
    return outputs_[ref.rank].rows + ref.row * outputs_[ref.rank].pitch_bytes;
  };
  const void* rows[kMaxRows];
  float weights[kMaxRows];
  int count = 0;
  for (int k = 0; k < route.top_k; ++k) {
    if (token + 1 < route.num_tokens && refs[route.top_k + k].rank >= 0)
      prefetch_row(address(refs[route.top_k + k]), row_bytes);
    if (refs[k].rank < 0) continue;
    if (args.topk_weights) weights[count] = args.topk_weights[token * route.top_k + k];
    rows[count++] = address(refs[k]);
  }
  const std::size_t out_row = args.expert_rows.hidden * element_bytes(args.out_dtype);
  const auto bias = [&](int i) {
    return args.bias[i] ? static_cast<const std::byte*>(args.bias[i]) + token * out_row : nullptr;
  };
  reduce_rows({.rows = rows,
               .weights = args.topk_weights ? weights : nullptr,
               .num_rows = count,
               .row_type = args.expert_rows.dtype,
               .bias = {bias(0), bias(1)},
               .out = static_cast<std::byte*>(args.out) +
                      token * (args.out_pitch_bytes ? args.out_pitch_bytes : out_row),
               .out_type = args.out_dtype,
               .hidden = args.expert_rows.hidden,
               .stores = stores});
}

// kRankMajor: sums [K] over ranks ascending. Expert layouts: the scalar of the row of (token, k).
void ExchangeState::bring_weights_home(const CombineArgs& args, std::int64_t token) const {
  const Route& route = *args.handle.route();
  float* home = args.out_topk_weights + token * route.top_k;
  std::memset(home, 0, route.top_k * sizeof(float));
  for (int k = 0; k < route.top_k; ++k) {
    const RowRef ref = route.refs[token * route.top_k + k];
    if (ref.rank < 0) continue;
    const float* theirs = outputs_[ref.rank].weights + ref.row * layout_.weights_per_row();
    if (!rank_major()) home[k] = theirs[0];
    for (int j = 0; rank_major() && j < route.top_k; ++j) home[j] += theirs[j];
  }
}

}  // namespace ferry::internal
