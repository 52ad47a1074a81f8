// One call of an operator: what all three have in common. The checks of tensors that both dispatch
// and combine take, and the way from a thrown Refused to a Result on every rank.
#pragma once

#include <functional>
#include <vector>

#include "cann/attributes.h"
#include "cann/elastic.h"
#include "cann/exchange_cache.h"

namespace ferry::cann::internal {

// Runs `body`; whatever it throws becomes a Result whose message begins with the operator's name.
Result call(const Communicator& communicator, const char* name, Purpose purpose,
            const std::function<Result(ExchangeCache&)>& body) noexcept;

// Runs checks that concern this rank alone.
Result checked(const std::function<void()>& checks) noexcept;

// The refusal of a caller that takes the place of an operator: throws Refused.
[[noreturn]] void refuse_for_caller(const Status& why);

// A tensor of floats: [rows, columns] of a type in which ferry computes.
void check_rows(const char* name, const Rows& rows, std::int64_t num_rows, std::int64_t hidden);
void check_float_type(const char* name, DataType type);
// The other way round: an output of at least num_rows rows.
void check_rows_out(const char* name, const RowsOut& rows, std::int64_t num_rows,
                    std::int64_t hidden);
template <typename T>
void check_room(const char* name, std::span<T> out, std::int64_t elements, const char* rule) {
  require_fit(out.empty() || static_cast<std::int64_t>(out.size()) >= elements,
              "{} has {} elements, need {} ({})", name, out.size(), elements, rule);
}

void check_expert_ids(const Matrix<const std::int32_t>& ids);
void check_weights(const char* name, const Matrix<const float>& weights,
                   const Matrix<const std::int32_t>& ids);
// Puts the mask where ferry has it: one-dimensional to token_mask, two-dimensional to topk_mask.
void take_mask(const Matrix<const std::uint8_t>& mask, const Matrix<const std::int32_t>& ids,
               ferry::DispatchArgs& args);

// Waits of the ranks of each source, the largest of its tensor-parallel positions, into the
// caller's maximum so far.
void record_waits(const OperationTimes& times, int positions, std::span<std::int64_t> info);

}  // namespace ferry::cann::internal
