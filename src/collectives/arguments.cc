#include "collectives/arguments.h"

#include <limits>
#include <utility>

#include "base/out_of_memory.h"
#include "kernels/reduce_elements.h"

namespace ferry::internal {

namespace {

constexpr std::int64_t kMostBytes = std::numeric_limits<std::int64_t>::max() / 2;

}  // namespace

template <typename... Values>
void CallArguments::refuse(fmt::format_string<Values...> text, Values&&... values) noexcept {
  refusal_ =
      Status(Code::kInvalidArgument,
             text_of([&] { return fmt::format(text, std::forward<Values>(values)...); }), rank_);
}

CallArguments::CallArguments(int rank, int num_ranks, DataType dtype,
                             const std::vector<bool>* members) noexcept
    : rank_(rank), num_ranks_(num_ranks), dtype_(dtype), members_(members) {
  if (element_bytes(dtype) == 0)
    refuse("dtype is {}, need one of DataType", static_cast<int>(dtype));
}

std::int64_t CallArguments::counts(const char* name, std::span<const std::int64_t> counts) {
  if (!refusal_.ok()) return 0;
  if (static_cast<std::int64_t>(counts.size()) != num_ranks_) {
    refuse("{} has {} elements, need one for each of {} ranks", name, counts.size(), num_ranks_);
    return 0;
  }
  const std::int64_t most = kMostBytes / static_cast<std::int64_t>(element_bytes(dtype_));
  std::int64_t sum = 0;
  for (int peer = 0; peer < num_ranks_; ++peer) {
    if (counts[peer] < 0 || counts[peer] > most - sum) {
      refuse("{}[{}] is {}, need 0 to {} elements in all", name, peer, counts[peer], most);
      return 0;
    }
    sum += counts[peer];
  }
  return sum;
}

void CallArguments::count(std::int64_t count) {
  if (!refusal_.ok()) return;
  const std::int64_t most = kMostBytes / static_cast<std::int64_t>(element_bytes(dtype_));
  if (count < 0 || count > most) refuse("count is {}, need 0 to {}", count, most);
}

void CallArguments::own_count(std::int64_t count, std::span<const std::int64_t> counts) {
  if (!refusal_.ok() || counts[rank_] == count) return;
  refuse("counts[{}] is {}, and rank {} gives {} elements", rank_, counts[rank_], rank_, count);
}

void CallArguments::memory(const char* name, const void* data, std::int64_t count) {
  if (!refusal_.ok() || data != nullptr || count == 0) return;
  refuse("{} is null, need {} elements", name, count);
}

void CallArguments::apart(const Memory& in, const Memory& out, std::optional<std::int64_t> place) {
  if (!refusal_.ok()) return;
  const auto element = static_cast<std::int64_t>(element_bytes(dtype_));
  const auto from = reinterpret_cast<std::intptr_t>(in.data);
  const auto to = reinterpret_cast<std::intptr_t>(out.data);
  const std::int64_t behind = to - from;  // no overflow: addresses have fewer bits
  if (in.count == 0 || out.count == 0) return;
  if (behind >= in.count * element || -behind >= out.count * element) return;
  if (place && behind == -*place * element) return;
  refuse("out begins {} bytes behind in, which has {} bytes: they overlap", behind,
         in.count * element);
}

void CallArguments::op(ReduceOp op) {
  if (!refusal_.ok() || can_reduce(dtype_, op)) return;
  refuse("elements of {} cannot be reduced with op {}", data_type_name(dtype_), reduce_op_name(op));
}

void CallArguments::peer(const char* name, int peer, int least) {
  if (!refusal_.ok()) return;
  if (peer < least || peer >= num_ranks_) {
    refuse("{} is {}, need {} to {}", name, peer, least, num_ranks_ - 1);
  } else if (members_ && peer >= 0 && !(*members_)[peer]) {
    refuse("{} is {}, which the view of the group lacks", name, peer);
  }
}

void CallArguments::deadline(std::int64_t ns) {
  if (!refusal_.ok() || ns >= 0) return;
  refuse("the deadline is {} ns, need 0 or more", ns);
}

}  // namespace ferry::internal
