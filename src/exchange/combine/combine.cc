#include "exchange/combine/combine.h"

#include <fmt/format.h>

#include <numeric>

#include "exchange/arguments/argument_rules.h"
#include "exchange/dispatch/place_rows.h"
#include "exchange/state.h"
#include "kernels/row_sums.h"
#include "routing/placement.h"

namespace ferry::internal {

Status ExchangeState::combine_send(const CombineArgs& args, Operation& operation) {
  operation = {};
  const std::int64_t began = now_ns();
  Protocol& protocol = parts_.protocol;
  if (Status status = protocol.begin(args.deadline); !status.ok()) return status;
  Status refusal = protocol.choose_active(args.handle       ? args.handle.route()->active->chosen
                                          : args.dispatched ? args.dispatched->active_ranks
                                                            : std::span<const int>());
  const Issued issued = protocol.issue(OperationKind::kCombine);
  auto combine = std::make_unique<Combine>(parts_, issued, args);
  operation.number = issued.number;
  if (refusal.ok() && !issued.active->contains_me()) {
    protocol.keep_out(std::move(combine));
    return {};
  }
  if (refusal.ok()) refusal = combine->announce();
  Status status = refusal.ok() ? combine->ask() : protocol.refuse(issued, refusal);
  if (!status.ok()) {
    operation = {};
    return status;
  }
  combine->times.spans.push_back({"publish", began, now_ns()});
  protocol.keep(std::move(combine));
  return {};
}

Status ExchangeState::combine_recv(Operation operation) {
  std::unique_ptr<InFlight> sent;
  Status status = parts_.protocol.collect(operation, OperationKind::kCombine, sent);
  if (status.ok()) combine_times_ = std::move(static_cast<Combine&>(*sent).times);
  count();
  return status;
}

Combine::Combine(ExchangeParts& exchange, const Issued& issued, const CombineArgs& args)
    : InFlight(issued), exchange_(exchange), setup_(*exchange.setup), args_(args) {
  times.spans.reserve(4);  // one for each phase
}

Status Combine::announce() {
  Status refusal = exchange_.protocol.check_depth(OperationKind::kCombine);
  if (refusal.ok()) refusal = check_combine(setup_, args_);
  if (refusal.ok()) refusal = find_route();
  if (refusal.ok()) refusal = check_combine_routed(setup_, args_, *route_);
  if (refusal.ok()) refusal = check_window(*exchange_.pool, setup_.rank, args_, *route_);
  if (refusal.ok()) refusal = publish_outputs();
  if (!refusal.ok()) return refusal;
  exchange_.protocol.publish(number(), Stage::kDelivered);
  return {};
}

// The handle's, or made anew from what dispatch was given; its slots follow when the counts of all
// ranks are here.
Status Combine::find_route() {
  if (args_.handle) {
    route_ = args_.handle.route();
    return check_combine_handle(setup_, args_);
  }
  if (Status status = check_dispatched(setup_, args_); !status.ok()) return status;
  const Status status = make_route(setup_, issued(), *args_.dispatched, unplaced_);
  if (!status.ok()) {
    return {Code::kInvalidArgument,
            fmt::format("combine: of what was dispatched: {}", status.message()), setup_.rank};
  }
  route_ = unplaced_;
  count_entries(setup_.rules(), *route_, exchange_.view.count_row(setup_.rank, number()));
  return {};
}

// Between nodes a combine without a handle waits here, in its send half, for the outputs of all
// ranks: by them it knows which sums to ask for. The other ranks wait for these requests in their
// receive halves, so this rank must have sent them before its own receive half.
Status Combine::ask() {
  if (exchange_.ways.none()) return {};
  if (unplaced_) {
    Protocol& protocol = exchange_.protocol;
    Status status = protocol.await(issued(), "outputs", Stage::kDelivered);
    if (status.ok()) status = protocol.examine(issued());
    if (status.ok()) status = place();
    unplaced_.reset();
    if (!status.ok()) return protocol.fail(issued(), status);
  }
  ask_for_sums();
  return {};
}

Status Combine::receive() {
  Status status = reduce();
  exchange_.ways.forget_sums(number());
  return status;
}

Status Combine::reduce() {
  const std::int64_t began = now_ns();
  times.wait_ns.resize(exchange_.group->size());
  times.spans.push_back({"outputs", began, began});
  const Route& route = *route_;
  outputs_.resize(active().ranks.size());
  std::vector<std::int32_t>& left = exchange_.tokens.left;
  left.resize(route.num_tokens);
  std::iota(left.begin(), left.end(), 0);
  Protocol& protocol = exchange_.protocol;
  Status status = await_outputs();
  const bool one_node = exchange_.ways.none();
  begin_phase(one_node ? "reduce" : "sums");
  if (status.ok()) status = protocol.examine(issued());
  if (status.ok() && unplaced_) status = place();
  if (!status.ok()) return status;
  if (args_.out_topk_weights && protocol.agreed_weights(issued()) == Agreed::kNo) {
    return {Code::kInvalidArgument,
            "combine: out_topk_weights needs row_weights, and no rank gave any", setup_.rank};
  }
  find_outputs();
  if (!one_node) {
    if (status = await_sums(); !status.ok()) return status;
    begin_phase("reduce");
  }
  reduce_tokens(left);
  times.spans.back().end_ns = now_ns();
  const std::uint64_t pulled =
      route.num_sent * route.active->num_positions * dense_pitch(args_.expert_rows);
  exchange_.stores.took(StoreChoice::kReduce, bytes_of_all(), pulled, reduce_ns_);
  exchange_.stats.bytes_pulled += pulled;
  ++exchange_.stats.combines;
  return one_node ? Status{} : await_served();
}

// Of the rows that all ranks received.
std::uint64_t Combine::bytes_of_all() const {
  return route_->total_rows * setup_.layout.row_bytes();
}

void Combine::begin_phase(const char* phase) {
  const std::int64_t now = now_ns();
  times.spans.back().end_ns = now;
  times.spans.push_back({phase, now, now});
}

void Combine::reduce_tokens(std::span<const std::int32_t> tokens) {
  const std::uint64_t all = bytes_of_all();
  const Stores stores = exchange_.stores.stores(all);
  reduce_ns_ += exchange_.stores.time(all, [&] {
    exchange_.workers->run(std::ssize(tokens), [&](std::int64_t begin, std::int64_t end) {
      reduce_share(tokens.subspan(begin, end - begin), stores);
    });
  });
}

// One worker's share of the tokens.
void Combine::reduce_share(std::span<const std::int32_t> tokens, Stores stores) const {
  const RowFormat format = row_format();
  Summands sum(format.hidden, format.wire_bytes());
  RowSum rows(format, exchange_.ways.sum_type(format.type), exchange_.ways.num_levels());
  const ReduceJob job{sum, rows_are_terms() ? nullptr : &rows, stores};
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i + 1 < tokens.size()) prefetch_outputs(tokens[i + 1]);
    reduce_token(tokens[i], job);
    if (args_.out_topk_weights) return_weights(tokens[i]);
  }
  if (stores == Stores::kStreaming) stores_fence();
}

RowFormat Combine::row_format() const {
  return {.wire = &setup_.combine_wire,
          .type = args_.expert_rows.dtype,
          .hidden = args_.expert_rows.hidden,
          .partials = args_.partials,
          .weighted = args_.topk_weights != nullptr};
}

// The counts that came with the outputs say where the rows of all ranks are; all ranks see whose
// outputs do not fit them.
Status Combine::place() {
  Route& route = *unplaced_;
  place_rows_alone(exchange_, number(), route);
  for (std::size_t i = 0; i < active().ranks.size(); ++i) {
    const int member = static_cast<int>(i) % active().num_members;
    const std::int64_t rows = setup_.config.layout == Layout::kPadded
                                  ? active().map.num_local(member) * setup_.config.expert_capacity
                                  : route.section_rows[member];
    const Record& theirs = exchange_.record(active().ranks[i], number());
    if (theirs.num_rows == rows) continue;
    return {Code::kInvalidArgument,
            fmt::format("combine: rank {} gave {} expert rows, the top-k ids of all ranks place {} "
                        "there",
                        active().ranks[i], theirs.num_rows, rows),
            active().ranks[i]};
  }
  return check_shares();
}

Status Combine::check_shares() const {
  bool all = true;
  std::uint64_t sum = 0;
  for (const int peer : active().ranks) {
    const Record& theirs = exchange_.record(peer, number());
    all = all && theirs.has_share;
    sum += theirs.share_of_zero;
  }
  if (!all || sum == 0) return {};
  return {Code::kMismatch, "combine: the shares of zero of all ranks add up to something else"};
}

void Combine::find_outputs() {
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    const int peer = active().ranks[i];
    if (exchange_.here(peer)) outputs_[i] = outputs_of(peer);
  }
}

Combine::PublishedRows Combine::outputs_of(int peer) const {
  const Record& theirs = exchange_.record(peer, number());
  const Published& rows = theirs.published;
  const std::byte* window = exchange_.view.window(peer);
  return {window + rows.rows_offset, rows.pitch_bytes,
          reinterpret_cast<const float*>(window + rows.weights_offset), theirs.encoded};
}

void Combine::reduce_token(std::int64_t token, const ReduceJob& job) const {
  const std::int64_t hidden = args_.expert_rows.hidden;
  const std::size_t out_row = hidden * element_bytes(args_.out_dtype);
  job.sum.clear();
  collect_terms(token, job);
  const auto row_of = [&](const void* matrix) {
    return matrix ? static_cast<const std::byte*>(matrix) + token * out_row : nullptr;
  };
  std::byte* out = static_cast<std::byte*>(args_.out) +
                   token * (args_.out_pitch_bytes ? args_.out_pitch_bytes : out_row);
  const bool norm = args_.norm.residual != nullptr;
  float* sum = norm ? reinterpret_cast<float*>(job.sum.scratch()) : nullptr;
  job.sum.reduce(
      {.row_type = args_.expert_rows.dtype,
       .bias = {norm ? nullptr : row_of(args_.bias[0]), norm ? nullptr : row_of(args_.bias[1])},
       .out = norm ? static_cast<void*>(sum) : out,
       .out_type = norm ? DataType::kFp32 : args_.out_dtype,
       .hidden = hidden,
       .stores = norm ? Stores::kCached : job.stores},
      args_.topk_weights != nullptr);
  if (!norm) return;
  float unused = 0;
  normalise_row({.z = sum,
                 .gamma = args_.norm.gamma,
                 .epsilon = args_.norm.epsilon,
                 .type = args_.out_dtype,
                 .hidden = hidden,
                 .out = out,
                 .y = static_cast<std::byte*>(args_.norm.y) + token * out_row,
                 .rstd = args_.norm.rstd ? args_.norm.rstd + token : &unused});
}

}  // namespace ferry::internal
