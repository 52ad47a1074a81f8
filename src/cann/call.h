// One call of an operator: what all three have in common. The checks of tensors that both dispatch
// and combine take, and the way from a thrown Refused to a Result on every rank.
#pragma once

#include <functional>
#include <vector>

#include "cann/attributes.h"
#include "cann/configs.h"
#include "cann/elastic.h"
#include "cann/exchange_cache.h"

namespace ferry::cann::internal {

// Runs `body`; whatever it throws becomes a Result whose message begins with the operator's name.
Result call(const Communicator& communicator, const char* name, Purpose purpose,
            const std::function<Result(ExchangeCache&)>& body) noexcept;

// Runs checks that concern this rank alone.
Result checked(const std::function<void()>& checks) noexcept;

// What a call asks for. Throws Refused. The cache is told step by step, to meet the other ranks
// there if the call is refused.
struct Asked {
  ExchangeConfig config;
  ElasticMap elastic;
};
template <typename Args>
Asked ask(ExchangeCache& cache, const Args& args) {
  cache.expect(args.attributes, batch_of(args));
  cache.check_names(args.attributes);
  const ExchangeConfig config = config_of(args, cache.place());
  cache.expect(config);
  const ElasticMap elastic(args.elastic_info, args.attributes);
  cache.set_active(elastic.active());
  return {config, elastic};
}

// Takes the place of an operator on a rank whose caller refuses it.
template <typename Args>
Result refuse_call(const Communicator& communicator, const char* name, Purpose purpose,
                   const Args& args, const Status& why) noexcept {
  return call(communicator, name, purpose, [&](ExchangeCache& cache) -> Result {
    cache.expect(args.attributes, batch_of(args));
    try {
      cache.expect(config_of(args, cache.place()));
    } catch (const Refused&) {  // the cache knows the rows alone
    }
    throw Refused{status_code(why.code()), why};
  });
}

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

// Waits of the ranks of each source, the largest of its tensor-parallel ranks, into the
// caller's maximum so far.
void record_waits(const OperationTimes& times, int tp_size, std::span<std::int64_t> info);

}  // namespace ferry::cann::internal
