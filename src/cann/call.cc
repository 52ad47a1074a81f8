#include "cann/call.h"

#include <algorithm>
#include <exception>

#include "base/check.h"

namespace ferry::cann {

StatusCode status_code(Code code) noexcept {
  switch (code) {
    case Code::kOk: return StatusCode::kSuccess;
    case Code::kInvalidArgument:
    case Code::kMismatch: return StatusCode::kInvalidParameter;
    case Code::kPeerRejected:
    case Code::kCapacity: return StatusCode::kTilingError;
    case Code::kPeerLost:
    case Code::kTimeout:
    case Code::kBroken:
    case Code::kClosed:
    case Code::kSystem:
    case Code::kInterrupted: return StatusCode::kRuntimeError;
  }
  return StatusCode::kRuntimeError;
}

Communicator::Communicator(Group group, CommunicatorOptions options)
    : cache_(std::make_shared<internal::ExchangeCache>(std::move(group), std::move(options))) {}

namespace internal {

namespace {

Status named(const char* name, const Status& status) {
  if (status.ok()) return status;
  return {status.code(), fmt::format("{}: {}", name, status.message()), status.culprit()};
}

Result outcome(const Communicator& communicator, const char* name, Purpose purpose,
               const std::function<Result(ExchangeCache&)>& body) {
  if (!communicator.cache()) {
    return {StatusCode::kRuntimeError, {Code::kClosed, "this Communicator was default-made"}};
  }
  ExchangeCache& cache = *communicator.cache();
  try {
    return body(cache);
  } catch (const Refused& refused) {
    return cache.refuse(purpose, {refused.code, named(name, refused.status)});
  } catch (const Failed& failed) {
    return failed.result;
  } catch (const Error& error) {
    return {status_code(error.code()), {error.code(), error.what(), error.culprit()}};
  }
}

}  // namespace

Result call(const Communicator& communicator, const char* name, Purpose purpose,
            const std::function<Result(ExchangeCache&)>& body) noexcept {
  try {
    Result result = outcome(communicator, name, purpose, body);
    if (!result.message().starts_with(name)) result.status = named(name, result.status);
    return result;
  } catch (const Error& error) {  // thrown while a refusal was sent to the other ranks
    return {status_code(error.code()), {error.code(), error.what()}};
  } catch (const std::exception& error) {
    return {StatusCode::kRuntimeError, {Code::kSystem, error.what()}};
  }
}

Result checked(const std::function<void()>& checks) noexcept {
  try {
    checks();
    return {};
  } catch (const Refused& refused) {
    return {refused.code, refused.status};
  } catch (const Error& error) {
    return {status_code(error.code()), {error.code(), error.what()}};
  } catch (const std::exception& error) {
    return {StatusCode::kRuntimeError, {Code::kSystem, error.what()}};
  }
}

void check_exchange(const ExchangeConfig& made, const ExchangeConfig& wanted, const Batch& batch) {
  FERRY_CHECK(made.max_tokens, >=, batch.bs);
  FERRY_CHECK(made.hidden, ==, wanted.hidden);
  FERRY_CHECK(made.top_k, ==, wanted.top_k);
  FERRY_CHECK(made.num_experts, ==, wanted.num_experts);
  FERRY_CHECK(made.tp_size, ==, wanted.tp_size);
}

void check_float_type(const char* name, DataType type) {
  require_value(type == DataType::kBf16 || type == DataType::kFp16 || type == DataType::kFp32,
                "{} is {}, need bf16, fp16 or fp32", name, data_type_name(type));
}

void check_rows(const char* name, const Rows& rows, std::int64_t num_rows, std::int64_t hidden) {
  if (num_rows == 0 && rows.data == nullptr) return;
  require_given(name, rows.data, num_rows * hidden);
  require_fit(rows.num_rows == num_rows && rows.hidden == hidden, "{} is ({}, {}), need ({}, {})",
              name, rows.num_rows, rows.hidden, num_rows, hidden);
}

void check_rows_out(const char* name, const RowsOut& rows, std::int64_t num_rows,
                    std::int64_t hidden) {
  if (num_rows == 0 && rows.data == nullptr) return;
  require_given(name, rows.data, num_rows * hidden);
  require_fit(rows.num_rows >= num_rows && rows.hidden == hidden,
              "{} is ({}, {}), need ({} or more, {})", name, rows.num_rows, rows.hidden, num_rows,
              hidden);
}

void check_expert_ids(const Matrix<const std::int32_t>& ids) {
  require_given("expert_ids", ids.data, ids.rows * ids.columns);
}

void check_weights(const char* name, const Matrix<const float>& weights,
                   const Matrix<const std::int32_t>& ids) {
  if (weights.data == nullptr) return;
  require_fit(weights.rows == ids.rows && weights.columns == ids.columns,
              "{} is ({}, {}), expert_ids is ({}, {})", name, weights.rows, weights.columns,
              ids.rows, ids.columns);
}

void take_mask(const Matrix<const std::uint8_t>& mask, const Matrix<const std::int32_t>& ids,
               ferry::DispatchArgs& args) {
  if (mask.data == nullptr) return;
  require_fit(mask.rows == ids.rows && (mask.columns == 1 || mask.columns == ids.columns),
              "x_active_mask is ({}, {}), need ({}, 1) or ({}, {})", mask.rows, mask.columns,
              ids.rows, ids.rows, ids.columns);
  (mask.columns == 1 ? args.token_mask : args.topk_mask) = mask.data;
}

void record_waits(const OperationTimes& times, int tp_size, std::span<std::int64_t> info) {
  if (!info.empty()) FERRY_CHECK(std::ssize(times.wait_ns), <=, std::ssize(info) * tp_size);
  for (std::size_t rank = 0; !info.empty() && rank < times.wait_ns.size(); ++rank) {
    std::int64_t& longest = info[rank / tp_size];
    longest = std::max(longest, times.wait_ns[rank] / 1000);
  }
}

}  // namespace internal

}  // namespace ferry::cann
