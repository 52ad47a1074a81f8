// The public Collectives: exceptions become a Status, and a call on an empty object is refused.
#include "ferry/collectives.h"

#include <fmt/format.h>

#include <utility>

#include "collectives/state.h"
#include "exchange/public_calls.h"
#include "exchange/setup/agreement.h"
#include "topology/caches.h"

namespace ferry {

using internal::CollectivesState;

namespace {

constexpr const char* kNoCollectives = "this Collectives was default-made or moved from";

template <typename Call>
Status guarded(const std::shared_ptr<CollectivesState>& state, const Call& call) noexcept {
  if (!state) return {Code::kClosed, kNoCollectives};
  return internal::guarded(state, call);
}

Message begun(const std::shared_ptr<CollectivesState>& state,
              const CollectivesState::MessageSpot& spot, Collectives::Deadline deadline) noexcept {
  Message message;
  Status status = guarded(state, [&](CollectivesState& made) {
    message = Message(made.begin(spot, deadline));
    return Status();
  });
  if (!status.ok()) message = Message(std::move(status));
  return message;
}

const CollectivesState& made(const std::shared_ptr<CollectivesState>& state) {
  if (!state) throw Error(Code::kClosed, kNoCollectives);
  return *state;
}

}  // namespace

// The calls have the parameters that MPI's calls of these names have.
// NOLINTBEGIN(readability-function-size)
Collectives::Collectives(const Group& group, const CollectivesOptions& options)
    : Collectives(
          CollectivesState::with_caches(group, options, internal::last_level_cache_bytes())) {}

ferry::Collectives internal::CollectivesState::with_caches(const Group& group,
                                                           const CollectivesOptions& options,
                                                           std::uint64_t cache_bytes) {
  const internal::Making counted(group.state());
  ferry::Collectives made;
  made.state_ = std::make_shared<CollectivesState>(group.state(), options, cache_bytes);
  return made;
}

void Collectives::refuse(const Group& group, const Status& why) {
  const internal::Making counted(group.state());
  internal::GroupState& members = internal::usable(group.state());
  internal::refuse_setup(members, Error(why.code(), why.message(), why.culprit()),
                         members.deadline());
}

int Collectives::rank() const { return made(state_).group().rank(); }
int Collectives::size() const { return made(state_).group().size(); }

Status Collectives::all_to_all_v(const void* in, Counts in_counts, void* out, Counts out_counts,
                                 DataType dtype, Deadline deadline) noexcept {
  return guarded(state_, [&](CollectivesState& state) {
    return state.all_to_all(in, in_counts, out, out_counts, dtype, deadline);
  });
}

Status Collectives::all_gather_v(const void* in, std::int64_t count, void* out, Counts counts,
                                 DataType dtype, Deadline deadline) noexcept {
  return guarded(state_, [&](CollectivesState& state) {
    return state.all_gather(in, count, out, counts, dtype, deadline);
  });
}

Status Collectives::reduce_scatter_v(const void* in, Counts counts, void* out, DataType dtype,
                                     ReduceOp op, Deadline deadline) noexcept {
  return guarded(state_, [&](CollectivesState& state) {
    return state.reduce_scatter(in, counts, out, dtype, op, deadline);
  });
}

Status Collectives::all_reduce(const void* in, void* out, std::int64_t count, DataType dtype,
                               ReduceOp op, Deadline deadline) noexcept {
  return guarded(state_, [&](CollectivesState& state) {
    return state.all_reduce(in, out, count, dtype, op, deadline);
  });
}

Status Collectives::reduce(const void* in, void* out, std::int64_t count, DataType dtype,
                           ReduceOp op, int root, Deadline deadline) noexcept {
  return guarded(state_, [&](CollectivesState& state) {
    return state.reduce(in, out, count, dtype, op, root, deadline);
  });
}

Status Collectives::broadcast(void* data, std::int64_t count, DataType dtype, int root,
                              Deadline deadline) noexcept {
  return guarded(state_, [&](CollectivesState& state) {
    return state.broadcast(data, count, dtype, root, deadline);
  });
}

Status Collectives::gather_v(const void* in, void* out, Counts counts, DataType dtype, int root,
                             Deadline deadline) noexcept {
  return guarded(state_, [&](CollectivesState& state) {
    return state.gather(in, out, counts, dtype, root, deadline);
  });
}

Status Collectives::scatter_v(const void* in, void* out, Counts counts, DataType dtype, int root,
                              Deadline deadline) noexcept {
  return guarded(state_, [&](CollectivesState& state) {
    return state.scatter(in, out, counts, dtype, root, deadline);
  });
}

Status Collectives::barrier(Deadline deadline) noexcept {
  return guarded(state_, [&](CollectivesState& state) { return state.barrier(deadline); });
}

std::shared_ptr<void> Collectives::allocate(std::int64_t bytes) const {
  return made(state_).allocate(bytes);
}

Status Collectives::refuse(const Status& why) noexcept {
  return guarded(state_, [&](CollectivesState& state) { return state.refuse(why); });
}

Status Collectives::send(const void* data, std::int64_t count, DataType dtype, int peer,
                         std::int64_t tag, Deadline deadline) noexcept {
  return guarded(state_, [&](CollectivesState& state) {
    return state.transfer({.from = data, .count = count, .dtype = dtype, .peer = peer, .tag = tag},
                          nullptr, deadline);
  });
}

Status Collectives::recv(void* data, std::int64_t count, DataType dtype, int peer, std::int64_t tag,
                         int* source, Deadline deadline) noexcept {
  return guarded(state_, [&](CollectivesState& state) {
    return state.transfer(
        {.receives = true, .to = data, .count = count, .dtype = dtype, .peer = peer, .tag = tag},
        source, deadline);
  });
}

std::vector<std::string> Collectives::latest_calls(int rank) const {
  const CollectivesState& state = made(state_);
  if (rank < 0 || rank >= state.group().size()) {
    throw Error(Code::kInvalidArgument,
                fmt::format("rank is {}, need 0 to {}", rank, state.group().size() - 1));
  }
  return state.latest_calls(rank);
}

Message Collectives::begin_send(const void* data, std::int64_t count, DataType dtype, int peer,
                                std::int64_t tag, Deadline deadline) noexcept {
  return begun(state_, {.from = data, .count = count, .dtype = dtype, .peer = peer, .tag = tag},
               deadline);
}

Message Collectives::begin_recv(void* data, std::int64_t count, DataType dtype, int peer,
                                std::int64_t tag, Deadline deadline) noexcept {
  return begun(
      state_,
      {.receives = true, .to = data, .count = count, .dtype = dtype, .peer = peer, .tag = tag},
      deadline);
}

Status Collectives::progress(bool waits) noexcept {
  return guarded(state_, [&](CollectivesState& state) { return state.progress(waits); });
}

// NOLINTEND(readability-function-size)

Message::Message(std::shared_ptr<internal::MessageState> state) noexcept
    : state_(std::move(state)) {}

Message::Message(Status failure) noexcept : failure_(std::move(failure)) {}

bool Message::ended() const noexcept { return !state_ || state_->has_ended(); }

Status Message::status() const {
  if (state_) return state_->status;
  return failure_.ok() ? Status(Code::kClosed, kNoCollectives) : failure_;
}

int Message::source() const noexcept { return state_ ? state_->source : -1; }

}  // namespace ferry
