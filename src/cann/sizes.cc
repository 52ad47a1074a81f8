// The sizes that callers need before they allocate: rows of expand_x, bytes of the windows.
#include "cann/call.h"

namespace ferry::cann {

namespace {

template <typename Args>
Result window_of(const Args& args, WindowBytes& bytes) noexcept {
  return internal::checked([&] {
    const internal::Place place = internal::claimed_place(args.attributes);
    bytes = window_bytes(internal::config_of(args, place), place.size);
  });
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
  return window_of(args, bytes);
}

Result workspace_bytes(const CombineArgs& args, WindowBytes& bytes) noexcept {
  return window_of(args, bytes);
}

}  // namespace ferry::cann
