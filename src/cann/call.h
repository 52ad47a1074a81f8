// The steps that the calls of all operators share: checks of the tensors that both dispatch and
// combine take, and the conversion of a thrown Refused to a Result on every rank.
#pragma once

#include <functional>
#include <vector>

#include "cann/attributes.h"
#include "cann/configs.h"
#include "cann/elastic.h"
#include "cann/exchange_cache.h"

namespace ferry::cann::internal {

// Runs `body`. An exception becomes a Result whose message begins with the name of the operator.
Result call(const Communicator& communicator, const char* name, Purpose purpose,
            const std::function<Result(ExchangeCache&)>& body) noexcept;

// Runs checks that concern this rank alone.
Result checked(const std::function<void()>& checks) noexcept;

// The checked settings of a call. Throws Refused.
struct Request {
  Wanted wanted;
  ElasticMap elastic;
};
template <typename Args>
Request request_of(ExchangeCache& cache, const Args& args) {
  cache.set_active(named_ranks(args.elastic_info));
  cache.check_names(args.attributes);
  const ExchangeConfig config = config_of(args, cache.place());
  const ElasticMap elastic(args.elastic_info, args.attributes);
  return {{config, settings_of(args), takes_any_scales(args)}, elastic};
}

// Replaces the call of an operator on a rank whose caller refuses it.
template <typename Args>
Result refuse_call(const Communicator& communicator, const char* name, Purpose purpose,
                   const Args& args, const Status& why) noexcept {
  return call(communicator, name, purpose, [&](ExchangeCache& cache) -> Result {
    cache.set_active(named_ranks(args.elastic_info));
    throw Refused{status_code(why.code()), why};
  });
}

// Checks that the exchange that the cache found has the extents of the call.
void check_exchange(const ExchangeConfig& made, const ExchangeConfig& wanted, const Batch& batch);

// Checks a tensor of [num_rows, hidden], and a type in which ferry computes.
void check_rows(const char* name, const Rows& rows, std::int64_t num_rows, std::int64_t hidden);
void check_float_type(const char* name, DataType type);
// Checks an output of at least num_rows rows.
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
// Sets token_mask from a mask of one dimension, or topk_mask from a mask of two.
void take_mask(const Matrix<const std::uint8_t>& mask, const Matrix<const std::int32_t>& ids,
               ferry::DispatchArgs& args);

// info[i] becomes the longest wait for one of the tensor-parallel ranks of source i, in
// microseconds, if that is more than it was. Does nothing if `info` is empty.
void record_waits(const OperationTimes& times, int tp_size, std::span<std::int64_t> info);

}  // namespace ferry::cann::internal
