// What callers ask before they allocate: rows of expand_x, bytes of the windows.
#include "cann/configs.h"
#include "cann/refusal.h"

namespace ferry::cann {

namespace {

using internal::Place;

template <typename Args>
Result window_of(const Args& args, ExchangeConfig (*config_of)(const Args&, const Place&),
                 WindowBytes& bytes) noexcept {
  try {
    const Place place = internal::claimed_place(args.attributes);
    bytes = window_bytes(config_of(args, place), place.size);
    return {};
  } catch (const internal::Refused& refused) {
    return {refused.code, refused.status};
  } catch (const Error& error) {
    return {status_code(error.code()), {error.code(), error.what()}};
  } catch (const std::exception& error) {
    return {StatusCode::kRuntimeError, {Code::kSystem, error.what()}};
  }
}

}  // namespace

std::int64_t max_rows(const DispatchArgs& args) {
  const internal::Batch batch = internal::batch_of(args);
  try {
    internal::check_attributes(args.attributes, batch, internal::claimed_place(args.attributes));
  } catch (const internal::Refused& refused) {
    throw Error(refused.status.code(), refused.status.message());
  }
  return internal::row_capacity(args.attributes, batch, !args.elastic_info.empty());
}

Result workspace_bytes(const DispatchArgs& args, WindowBytes& bytes) noexcept {
  return window_of(args, internal::dispatch_config, bytes);
}

Result workspace_bytes(const CombineArgs& args, WindowBytes& bytes) noexcept {
  return window_of(args, internal::combine_config, bytes);
}

}  // namespace ferry::cann
