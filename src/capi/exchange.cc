// ferry_exchange_*: creation of an exchange, and its settings, sizes and counts.
#include "ferry/exchange.h"

#include <fmt/format.h>

#include "capi/boundary.h"
#include "capi/convert.h"
#include "capi/objects.h"

using namespace ferry::capi;

namespace {

// Fills a struct of the caller with read(*exchange).
template <typename Struct, typename Read>
ferry_code fill(const ferry_exchange* exchange, Struct* given, const char* name, const Read& read) {
  return guarded([&] {
    const ferry_exchange& made = required(exchange, "exchange");
    check_struct(given, name);
    write(read(made), given);
  });
}

const ferry::OperationTimes& times_of(const ferry_exchange& exchange, std::int32_t kind) {
  switch (kind) {
    case FERRY_OPERATION_DISPATCH: return exchange.exchange.last_dispatch_times();
    case FERRY_OPERATION_COMBINE: return exchange.exchange.last_combine_times();
  }
  throw ferry::Error(ferry::Code::kInvalidArgument,
                     fmt::format("kind is {}, need {} (dispatch) or {} (combine)", kind,
                                 static_cast<int>(FERRY_OPERATION_DISPATCH),
                                 static_cast<int>(FERRY_OPERATION_COMBINE)));
}

const ferry::OperationTimes::Span& span_of(const ferry::OperationTimes& times, std::int64_t index) {
  const auto num_spans = static_cast<std::int64_t>(times.spans.size());
  if (index < 0 || index >= num_spans) {
    throw ferry::Error(ferry::Code::kInvalidArgument,
                       fmt::format("span {}, need an index in [0, {})", index, num_spans));
  }
  return times.spans[index];
}

}  // namespace

ferry_code ferry_exchange_create(const ferry_group* group, const ferry_config* config,
                                 ferry_exchange** exchange) {
  return guarded([&] {
    if (exchange) *exchange = nullptr;
    const ferry_group& member = required(group, "group");
    ferry::ExchangeConfig wanted;
    void* memory = nullptr;
    const ferry::Status refusal = attempt(member.group.rank(), [&] {
      required(exchange, "exchange");
      wanted = to_config(config);
      memory = member.allocator.allocate(sizeof(ferry_exchange));
    });
    if (!refusal.ok()) ferry::Exchange::refuse(member.group, refusal);
    *exchange = make_in<ferry_exchange>(memory, member.allocator, member.group, wanted, false);
  });
}

ferry_code ferry_exchange_join(const ferry_group* group, const ferry_config* config,
                               ferry_exchange** exchange) {
  return guarded([&] {
    if (exchange) *exchange = nullptr;
    const ferry_group& member = required(group, "group");
    required(exchange, "exchange");
    *exchange = make<ferry_exchange>(member.allocator, member.group, to_config(config), true);
  });
}

void ferry_exchange_destroy(ferry_exchange* exchange) { destroy(exchange); }

ferry_code ferry_window_bytes(const ferry_config* config, int32_t num_ranks, ferry_window* window) {
  return guarded([&] {
    check_struct(window, "ferry_window");
    write(from_window_bytes(ferry::window_bytes(to_config(config), num_ranks)), window);
  });
}

ferry_code ferry_rank_window_bytes(const ferry_config* config, int32_t num_ranks, int32_t rank,
                                   ferry_window* window) {
  return guarded([&] {
    check_struct(window, "ferry_window");
    write(from_window_bytes(ferry::window_bytes(to_config(config), num_ranks, rank)), window);
  });
}

ferry_code ferry_exchange_config(const ferry_exchange* exchange, ferry_config* config) {
  return fill(exchange, config, "ferry_config", [](const ferry_exchange& made) {
    return from_config(made.exchange.config(), made.replicas);
  });
}

int32_t ferry_exchange_num_local_experts(const ferry_exchange* exchange) {
  return exchange ? exchange->exchange.num_local_experts() : -1;
}

ferry_code ferry_exchange_window_bytes(const ferry_exchange* exchange, ferry_window* window) {
  return fill(exchange, window, "ferry_window", [](const ferry_exchange& made) {
    return from_window_bytes(made.exchange.window_bytes());
  });
}

ferry_code ferry_exchange_stats(const ferry_exchange* exchange, ferry_stats* stats) {
  return fill(exchange, stats, "ferry_stats",
              [](const ferry_exchange& made) { return from_stats(made.exchange.stats()); });
}

ferry_code ferry_exchange_times(const ferry_exchange* exchange, int32_t kind, ferry_times* times) {
  return fill(exchange, times, "ferry_times",
              [kind](const ferry_exchange& made) { return from_times(times_of(made, kind)); });
}

ferry_code ferry_exchange_span(const ferry_exchange* exchange, int32_t kind, int64_t index,
                               ferry_span* span) {
  return fill(exchange, span, "ferry_span", [=](const ferry_exchange& made) {
    return from_span(span_of(times_of(made, kind), index));
  });
}
