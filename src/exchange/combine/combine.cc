#include "exchange/combine/combine.h"

#include <fmt/format.h>

#include <functional>

#include "base/check.h"
#include "exchange/arguments/argument_rules.h"
#include "exchange/combine/publish_outputs.h"
#include "exchange/parts/place_rows.h"
#include "exchange/ways/way.h"
#include "routing/placement.h"

namespace ferry::internal {

Combine::Combine(ExchangeParts& exchange, const Issued& issued, const CombineArgs& args)
    : InFlight(issued),
      call_{.exchange = exchange, .setup = *exchange.setup, .issued = this->issued(), .args = args},
      exchange_(exchange),
      outputs_(call_),
      sums_(call_),
      token_sum_(call_, outputs_, sums_),
      row_weights_(call_, outputs_, sums_) {
  times.spans.reserve(4);  // one for each phase
}

Status Combine::announce() {
  const Setup& setup = call_.setup;
  const CombineArgs& args = call_.args;
  Status refusal = exchange_.protocol.check_depth(OperationKind::kCombine);
  if (refusal.ok()) refusal = check_combine(setup, args);
  if (refusal.ok()) refusal = find_route();
  if (refusal.ok()) refusal = check_combine_routed(setup, args, *call_.route);
  if (refusal.ok()) refusal = check_window(*exchange_.pool, setup, args, *call_.route);
  if (refusal.ok()) refusal = publish_outputs(call_);
  if (!refusal.ok()) return refusal;
  exchange_.protocol.publish(number(), Stage::kDelivered);
  return {};
}

// Takes the route of the handle. Without a handle it makes a route from the arguments of the
// dispatch (CombineArgs::dispatched); place() adds the slots when the counts of all ranks are here.
Status Combine::find_route() {
  const CombineArgs& args = call_.args;
  if (args.handle) {
    call_.route = args.handle.route();
    return check_combine_handle(call_.setup, active(), args);
  }
  if (Status status = check_dispatched(call_.setup, args); !status.ok()) return status;
  unplaced_ = exchange_.new_route(issued());
  const Status status = fill_route(call_.setup, *args.dispatched, *unplaced_);
  if (!status.ok()) {
    return {Code::kInvalidArgument,
            fmt::format("combine: of what was dispatched: {}", status.message()), call_.setup.rank};
  }
  call_.route = unplaced_;
  call_.slots_are_known = false;
  if (call_.setup.sends())
    count_entries(call_.setup.rules(), *unplaced_,
                  exchange_.view.count_row(call_.setup.rank, number()));
  return {};
}

// Between nodes a combine without a handle waits here, in its send half, for the outputs of all
// ranks: the counts that come with them say which sums to request. The other ranks wait for these
// requests in their receive halves, so this rank must send them before its own receive half.
Status Combine::request_sums() {
  if (exchange_.ways.none()) return {};
  if (unplaced_) {
    Protocol& protocol = exchange_.protocol;
    Status status = protocol.await(issued(), "outputs", Stage::kDelivered);
    if (status.ok()) status = protocol.examine(issued(), call_.args.digests.all);
    if (status.ok()) status = place();
    if (!status.ok()) return protocol.fail(issued(), status);
  }
  sums_.request();
  return {};
}

// Computes the slots from the counts that came with the outputs. All ranks compare the counts with
// the sizes of the outputs, and find the same error if they do not fit.
Status Combine::place() {
  Route& route = *unplaced_;
  FERRY_CHECK(call_.slots_are_known, ==, false);
  place_rows_alone(exchange_, number(), route);
  unplaced_.reset();
  call_.slots_are_known = true;
  const ExchangeConfig& config = call_.setup.config;
  for (std::size_t i = 0; i < active().ranks.size(); ++i) {
    const int member = static_cast<int>(i) % active().num_members;
    const std::int64_t rows = config.layout == Layout::kPadded
                                  ? active().map.num_local(member) * config.expert_capacity
                                  : route.section_rows[member];
    const Record& theirs = exchange_.record(active().ranks[i], number());
    if (theirs.num_rows == rows) continue;
    return {Code::kInvalidArgument,
            fmt::format("combine: rank {} gave {} expert rows, the top-k ids of all ranks place {} "
                        "there",
                        active().ranks[i], theirs.num_rows, rows),
            active().ranks[i]};
  }
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
  const Route& route = *call_.route;
  exchange_.pending.restart(route.num_tokens);
  Protocol& protocol = exchange_.protocol;
  Status status = await_outputs();
  const bool one_node = exchange_.ways.none();
  begin_phase(one_node ? "reduce" : "sums");
  if (status.ok()) status = protocol.examine(issued(), call_.args.digests.all);
  if (status.ok() && unplaced_) status = place();
  if (!status.ok()) return status;
  if (call_.args.out_topk_weights && protocol.agreed_weights(issued()) == Agreed::kNo) {
    return {Code::kInvalidArgument,
            "combine: out_topk_weights needs row_weights, and no rank gave any", call_.setup.rank};
  }
  FERRY_CHECK(call_.slots_are_known, ==, true);
  outputs_.find_all();
  if (!one_node) {
    if (status = await_sums(); !status.ok()) return status;
    begin_phase("reduce");
  }
  FERRY_CHECK(std::ssize(exchange_.pending.pending()), <=, route.num_tokens);
  reduce_tokens(exchange_.pending.pending());
  times.spans.back().end_ns = now_ns();
  const std::uint64_t pulled =
      route.num_sent * route.active->tp_size * dense_pitch(call_.args.expert_rows);
  exchange_.stores.took(StoreChoice::kReduce, bytes_of_all(), pulled, reduce_ns_);
  exchange_.stats.bytes_pulled += pulled;
  ++exchange_.stats.combines;
  return one_node ? Status{} : await_served();
}

// On one node tokens are reduced during this wait, as soon as all their rows are published. Not
// between nodes, where tokens also need the sums of other nodes, and not without a handle, where
// the slots follow from the counts of all ranks.
Status Combine::await_outputs() {
  const std::function<std::int64_t()> meanwhile = [this] { return reduce_early(); };
  const bool early = exchange_.ways.none() && call_.slots_are_known;
  return exchange_.protocol.await(
      issued(), "outputs", Stage::kDelivered,
      {.wait_ns = &times.wait_ns, .meanwhile = early ? &meanwhile : nullptr});
}

// Reduces the tokens whose rows are published. Returns the nanoseconds that this took.
std::int64_t Combine::reduce_early() {
  const auto is_ready = [this](std::int64_t token) { return outputs_.are_here(token); };
  const bool ready =
      outputs_.find_more() && exchange_.pending.find_ready(is_ready, call_.route->num_tokens);
  return ready ? reduce_ready("outputs") : 0;
}

Status Combine::await_sums() {
  const std::vector<Way*> ways = exchange_.ways.of(active());
  FERRY_CHECK(ways.size(), ==, sums_.num_ways());
  for (std::size_t way = 0; way < ways.size(); ++way)
    if (Status status = await_sums(*ways[way], sums_.by_way(way)); !status.ok()) return status;
  return {};
}

Status Combine::await_sums(Way& way, const RequestedSums& requests) {
  std::vector<bool> requested(exchange_.group->size());
  const std::vector<ForwardingTable::Mate>& mates = way.table().mates;
  for (std::size_t next_hop = 0; next_hop < mates.size(); ++next_hop)
    requested[mates[next_hop].rank] = requests.asks(next_hop);
  Await sums = exchange_.protocol.awaiting(issued(), "sums", number());
  sums.flags = way.sums().summed();
  sums.only = &requested;
  const std::function<std::int64_t()> meanwhile = [this] { return reduce_summed(); };
  sums.meanwhile = &meanwhile;
  if (Status status = exchange_.group->wait(sums); !status.ok()) return status;
  for (const auto& [level, mate] : mates) {
    if (!requested[mate] || way.sums().all_here(number(), mate)) continue;
    return exchange_.protocol.destroyed(
        issued(), "sums", mate,
        fmt::format(" before it had summed rows for rank {}", call_.setup.rank));
  }
  return {};
}

// Reduces tokens whose sums of other nodes are here. Returns the nanoseconds that this took. It
// takes few tokens at once, because other ranks may wait for sums that this rank makes.
std::int64_t Combine::reduce_summed() {
  const auto is_ready = [this](std::int64_t token) { return sums_.are_here(token); };
  PendingTokens& pending = exchange_.pending;
  return pending.find_ready(is_ready, pending.few()) ? reduce_ready("sums") : 0;
}

// Waits until this rank has sent the sums that others requested from it.
Status Combine::await_served() {
  for (Way* const way : exchange_.ways.of(active())) {
    Await served = exchange_.protocol.awaiting(issued(), "requests", number());
    served.flags = way->sums().served();
    served.only = &way->table().is_served;
    served.last_hop = &way->table().last_hop;
    if (Status status = exchange_.group->wait(served); !status.ok()) return status;
  }
  return {};
}

// Reduces the ready tokens. `wait`: the phase that goes on afterwards.
std::int64_t Combine::reduce_ready(const char* wait) {
  begin_phase("reduce");
  reduce_tokens(exchange_.pending.ready());
  exchange_.pending.drop_ready();
  begin_phase(wait);
  const OperationTimes::Span& reduced = times.spans.end()[-2];
  return reduced.end_ns - reduced.begin_ns;
}

void Combine::reduce_tokens(std::span<const std::int32_t> tokens) {
  const std::uint64_t all = bytes_of_all();
  const Stores stores = exchange_.stores.stores(all);
  reduce_ns_ += exchange_.stores.time(all, [&] {
    exchange_.workers->run(std::ssize(tokens), [&](std::int64_t begin, std::int64_t end) {
      const auto share = tokens.subspan(begin, end - begin);
      token_sum_.reduce(share, stores);
      if (call_.args.out_topk_weights) row_weights_.write(share);
    });
  });
}

// The bytes of the rows that all ranks received, by which StoreChoice decides.
std::uint64_t Combine::bytes_of_all() const {
  return call_.route->total_rows * call_.setup.layout.row_bytes();
}

void Combine::begin_phase(const char* phase) {
  const std::int64_t now = now_ns();
  times.spans.back().end_ns = now;
  times.spans.push_back({phase, now, now});
}

}  // namespace ferry::internal
