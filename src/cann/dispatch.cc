// moe_distribute_dispatch: checks of the arguments, a dispatch, and the outputs of the operator
// from the received rows and counts.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "cann/call.h"

namespace ferry::cann {

namespace internal {

namespace {

constexpr const char* kName = "moe_distribute_dispatch";

// A call with checked attributes.
struct Dispatch {
  const DispatchArgs& args;
  const ElasticMap& elastic;
  Batch batch;
  int tp_size;            // ranks of the tensor-parallel group
  std::int64_t capacity;  // max(tp, 1) * A
  std::int64_t local;     // experts of this rank
  std::int64_t columns;   // columns of dynamic_scales that are written

  Dispatch(const DispatchArgs& given, const ElasticMap& map, std::int64_t scale_bytes)
      : args(given),
        elastic(map),
        batch(batch_of(given)),
        tp_size(tp_size_of(given.attributes)),
        capacity(tp_size * row_capacity(given.attributes, batch, !given.elastic_info.empty())),
        local(num_local(given.attributes)),
        columns(given.quant_mode == 0 ? scale_bytes / static_cast<std::int64_t>(sizeof(float))
                                      : scale_columns(given)) {
    const auto room = static_cast<std::int64_t>(given.dynamic_scales.size());
    if (takes_any_scales(given) && room < capacity * columns) columns = 0;
  }
};

DataType engine_type(DataType type) { return element_bytes(type) == 1 ? DataType::kBytes : type; }

void check_scales(const DispatchArgs& args, const Batch& batch) {
  const Matrix<const float>& scales = args.scales;
  if (args.quant_mode == 0) {
    require_fit(scales.data == nullptr || scales.rows == batch.bs,
                "scales with quant_mode 0 has {} rows, need Bs {}: they travel with the tokens",
                scales.rows, batch.bs);
    return;
  }
  require(args.quant_mode != 1 || scales.data != nullptr, StatusCode::kNullPointer,
          "scales is null, quant_mode 1 needs (1, 1), (1, H) or (shared + moe, 1 or H)");
  if (scales.data == nullptr) return;
  require_fit(args.quant_mode != 3, "scales with quant_mode 3: smooth scales go with 1 and 2 only");
  const std::int64_t experts = num_shared(args.attributes) + args.attributes.moe_expert_num;
  require_fit(scales.rows == 1 || scales.rows == experts,
              "scales has {} rows, need 1 or {} (shared_expert_num + moe_expert_num)", scales.rows,
              experts);
  require_fit(scales.columns == 1 || scales.columns == batch.h,
              "scales has {} columns, need 1 or H {}", scales.columns, batch.h);
}

void check_inputs(const DispatchArgs& args, const Batch& batch) {
  check_expert_ids(args.expert_ids);
  require_fit(args.x.num_rows == batch.bs || (batch.bs == 0 && args.x.data == nullptr),
              "x is ({}, {}), expert_ids is ({}, {}): need as many rows", args.x.num_rows,
              args.x.hidden, batch.bs, batch.k);
  check_rows("x", args.x, batch.bs, batch.h);
  check_scales(args, batch);
  check_weights("expert_scales", args.expert_scales, args.expert_ids);
  require_in("expert_token_nums_type", args.expert_token_nums_type, 0, 1);
  check_room("performance_info", args.performance_info, args.attributes.ep_world_size, "ep");
}

void check_outputs(const Dispatch& call) {
  const DispatchArgs& args = call.args;
  const std::int64_t rows = call.capacity;
  require(args.expand_x.data != nullptr || args.received != nullptr || rows == 0,
          StatusCode::kNullPointer, "expand_x is null, need {} rows, or `received`", rows);
  if (args.expand_x.data != nullptr) {
    check_rows_out("expand_x", args.expand_x, rows, call.batch.h);
    constexpr DataType kQuantised[] = {DataType::kBf16, DataType::kInt8, DataType::kInt8,
                                       DataType::kFp8E4m3};
    const DataType type = args.quant_mode == 0 ? args.x.dtype : kQuantised[args.quant_mode];
    require_value(args.expand_x.dtype == type, "expand_x is {}, need {} with quant_mode {}",
                  data_type_name(args.expand_x.dtype), data_type_name(type), args.quant_mode);
    require(call.columns == 0 || args.dynamic_scales.data() != nullptr || rows == 0,
            StatusCode::kNullPointer, "dynamic_scales is null, need {} elements",
            rows * call.columns);
  }
  check_room("dynamic_scales", args.dynamic_scales, rows * call.columns,
             "rows of expand_x times scales of a row");
  check_room("expand_idx", args.expand_idx, call.batch.bs * call.batch.k, "Bs * K");
  check_room("assist_info_for_combine", args.assist_info_for_combine, 3 * rows,
             "3 for each row of expand_x");
  check_room("expert_token_nums", args.expert_token_nums, call.local, "localE");
  check_room("ep_recv_counts", args.ep_recv_counts,
             call.tp_size * call.local * call.elastic.num_sources(), "max(tp, 1) * localE * ep");
  check_room("tp_recv_counts", args.tp_recv_counts, call.tp_size, "max(tp, 1)");
  check_room("expand_scales", args.expand_scales, rows, "rows of expand_x");
}

// Writes for each entry that is sent the number of earlier sent entries of this rank with the same
// id; -1 for an entry that is not sent.
void write_expand_idx(const DispatchArgs& args) {
  if (args.expand_idx.empty()) return;
  const Matrix<const std::int32_t>& ids = args.expert_ids;
  const Matrix<const std::uint8_t>& mask = args.x_active_mask;
  const Attributes& a = args.attributes;
  std::vector<std::int32_t> seen(a.moe_expert_num + a.zero_expert_num + a.copy_expert_num +
                                 a.const_expert_num);
  for (std::int64_t i = 0; i < ids.rows * ids.columns; ++i) {
    const std::int64_t masked_by = mask.columns == ids.columns ? i : i / ids.columns;
    const bool sent = ids.data[i] >= 0 && (mask.data == nullptr || mask.data[masked_by] != 0);
    args.expand_idx[i] = sent ? seen[ids.data[i]]++ : -1;
  }
}

// A rank that elastic_info excludes has no counts, and writes zeros.
void write_counts(const Dispatch& call, const Handle& handle) {
  const DispatchArgs& args = call.args;
  const auto counts = handle.tokens_per_expert();
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < call.local && !args.expert_token_nums.empty(); ++i) {
    const std::int64_t count = counts.empty() ? 0 : counts[i];
    sum += count;
    args.expert_token_nums[i] = args.expert_token_nums_type == 0 ? sum : count;
  }
  const auto running = handle.running_counts();
  const std::int64_t block = call.local * call.elastic.num_sources();
  FERRY_CHECK(counts.empty(), ==, running.empty());
  if (!counts.empty()) {
    FERRY_CHECK(std::ssize(counts), ==, call.local);
    FERRY_CHECK(std::ssize(running), ==, call.tp_size * block);
  }
  const auto at = [&](std::int64_t i) {
    return running.empty() ? 0 : static_cast<std::int32_t>(running[i]);
  };
  for (std::int64_t i = 0; i < call.tp_size * block && !args.ep_recv_counts.empty(); ++i)
    args.ep_recv_counts[i] = at(i);
  for (int i = 0; i < call.tp_size && !args.tp_recv_counts.empty(); ++i) {
    const auto tp_rank = call.tp_size == 1 ? 0 : (args.attributes.tp_rank_id + i) % call.tp_size;
    args.tp_recv_counts[tp_rank] = block == 0 ? 0 : at((i + 1) * block - 1);
  }
}

void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void write_rows(const Dispatch& call, const Received& received) {
  const DispatchArgs& args = call.args;
  const std::int64_t rows = received.num_rows;
  FERRY_CHECK(std::ssize(received.sources), ==, 3 * rows);
  if (args.expand_x.data != nullptr)
    copy_bytes(args.expand_x.data, received.data,
               rows * received.hidden * element_bytes(received.dtype));
  if (!args.assist_info_for_combine.empty())
    std::ranges::copy(received.sources, args.assist_info_for_combine.begin());
  if (!args.expand_scales.empty()) std::ranges::copy(received.weights, args.expand_scales.begin());
  for (std::int64_t row = 0; row < rows && !args.dynamic_scales.empty(); ++row) {
    copy_bytes(
        args.dynamic_scales.data() + row * call.columns,
        static_cast<const std::byte*>(received.scales.data) + row * received.scales.row_stride,
        call.columns * sizeof(float));
  }
}

// The capacity A of the operators assumes that the ids of a token differ. With equal ids a rank may
// receive more rows than A. The rows have arrived then, so that the call fails on this rank only.
void check_overflow(const Dispatch& call, const Received& received) {
  const DispatchArgs& args = call.args;
  const auto fits = [&](std::int64_t room, std::int64_t per_row) {
    return room == 0 || room >= received.num_rows * per_row;
  };
  if (fits(args.expand_x.data ? args.expand_x.num_rows : 0, 1) &&
      fits(args.assist_info_for_combine.size(), 3) && fits(args.expand_scales.size(), 1) &&
      fits(args.dynamic_scales.size(), call.columns))
    return;
  throw Failed{
      {StatusCode::kTilingError,
       {Code::kCapacity,
        fmt::format("{} rows were received, the outputs have room for {}: a token has the same "
                    "expert id twice; nothing was written",
                    received.num_rows, call.capacity)}}};
}

Result run_in(ExchangeCache& cache, Exchange& exchange, const Wanted& wanted,
              const ElasticMap& elastic, const DispatchArgs& args) {
  const Dispatch call(args, elastic, exchange.config().scale_bytes);
  check_exchange(exchange.config(), wanted.config, call.batch);
  check_inputs(args, call.batch);
  check_outputs(call);

  std::vector<std::int32_t> ids;
  std::vector<float> factors;
  std::vector<std::uint64_t> digests;
  ferry::DispatchArgs sent{
      .tokens = {args.x.data, call.batch.bs, call.batch.h, engine_type(args.x.dtype),
                 args.x.pitch_bytes},
      .topk_ids = {elastic.translate(args.expert_ids, ids), call.batch.bs,
                   static_cast<int>(call.batch.k), IndexType::kInt32},
      .topk_weights = args.expert_scales.data,
      .active_ranks = elastic.active(),
      .digests = {digest_of(wanted.settings, kSame, wanted.any_scales), &digests}};
  take_mask(args.x_active_mask, args.expert_ids, sent);
  if (args.quant_mode == 0) {
    sent.token_scales = args.scales.data;
  } else if (args.scales.data != nullptr) {
    sent.scales = elastic.translate(
        {args.scales.data, static_cast<int>(args.scales.rows), args.scales.columns}, factors);
  }
  Received received;
  if (args.received != nullptr) args.received->release();
  const Status status = exchange.dispatch(sent, received);
  if (Exchange* next = cache.follow(wanted, status, digests))
    return run_in(cache, *next, wanted, elastic, args);
  if (!status.ok()) return {status_code(status.code()), status};
  check_overflow(call, received);
  write_rows(call, received);
  write_counts(call, received.handle);
  write_expand_idx(args);
  record_waits(exchange.last_dispatch_times(), call.tp_size, args.performance_info);
  if (args.received != nullptr) *args.received = std::move(received);
  return {};
}

Result run(ExchangeCache& cache, const DispatchArgs& args) {
  const auto [wanted, elastic] = request_of(cache, args);
  return run_in(cache, cache.find(wanted), wanted, elastic, args);
}

}  // namespace

}  // namespace internal

Result moe_distribute_dispatch(const Communicator& communicator,
                               const DispatchArgs& args) noexcept {
  return internal::call(communicator, internal::kName, internal::Purpose::kDispatch,
                        [&](internal::ExchangeCache& cache) { return internal::run(cache, args); });
}

Result check(const DispatchArgs& args, WindowBytes& bytes) noexcept {
  if (Result result = workspace_bytes(args, bytes); !result.ok()) return result;
  return internal::checked([&] {
    const internal::ElasticMap everybody({}, args.attributes);
    const internal::Dispatch call(args, everybody, internal::scale_columns(args) * sizeof(float));
    internal::check_inputs(args, call.batch);
    internal::check_outputs(call);
  });
}

Result refuse_dispatch(const Communicator& communicator, const DispatchArgs& args,
                       const Status& why) noexcept {
  return internal::refuse_call(communicator, internal::kName, internal::Purpose::kDispatch, args,
                               why);
}

}  // namespace ferry::cann
