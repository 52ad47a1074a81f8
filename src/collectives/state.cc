#include "collectives/state.h"

#include <fmt/format.h>

#include <numeric>
#include <vector>

#include "base/out_of_memory.h"
#include "collectives/data.h"
#include "collectives/digest.h"
#include "exchange/setup/agreement.h"
#include "memory/available.h"

namespace ferry::internal {

namespace {

constexpr const char* kObject = "Collectives object";  // in errors

// The bytes of all mailboxes of one sender (mailbox.h).
constexpr std::size_t kMailboxBytes = std::size_t{2} << 20;

const std::byte* bytes(const void* data) noexcept { return static_cast<const std::byte*>(data); }
std::byte* bytes(void* data) noexcept { return static_cast<std::byte*>(data); }

GroupState& member(const std::shared_ptr<GroupState>& group) {
  if (!group) {
    throw Error(Code::kClosed,
                "cannot create a Collectives object: this Group is not a member of anything");
  }
  return usable(group);
}

void check_options(const CollectivesOptions& options, int num_ranks) {
  // At least a cache line for each rank in each half.
  const std::int64_t least = 2 * std::int64_t{CollectivesLayout::kLine} * num_ranks;
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  if (options.window_bytes < least || options.window_bytes > kMost) {
    throw Error(Code::kInvalidArgument,
                fmt::format("window_bytes is {}, need {} to {} for {} ranks", options.window_bytes,
                            least, kMost, num_ranks));
  }
  if (options.shared_bytes < 0 || options.shared_bytes > kMost) {
    throw Error(Code::kInvalidArgument,
                fmt::format("shared_bytes is {}, need 0 to {}", options.shared_bytes, kMost));
  }
  for (const auto deadline : {options.deadline, options.creation_deadline}) {
    if (deadline.count() >= 0) continue;
    throw Error(Code::kInvalidArgument,
                fmt::format("the deadline is {} ns, need 0 or more", deadline.count()));
  }
}

}  // namespace

struct CollectivesState::Parts {
  Parts(GroupState& group, const CollectivesOptions& options);
  MailboxShape mailboxes;
  CollectivesLayout layout;
  std::shared_ptr<Segment> segment;
  std::shared_ptr<Mirror> mirror;  // null on one node

 private:
  bool back(GroupState& group) const noexcept;
};

// Backs the memory that this rank is the first to write: its own, that of the ranks of other nodes
// that it serves, and the mailboxes of all ranks of other nodes to this rank.
bool CollectivesState::Parts::back(GroupState& group) const noexcept {
  const int rank = group.rank();
  bool backed = segment->commit(layout.mailboxes(rank), layout.mailboxes_bytes());
  for (int peer = 0; peer < group.size() && backed; ++peer) {
    if (peer == rank || (mirror && mirror->serves(peer))) {
      backed = segment->commit(layout.control(peer), layout.control_bytes()) &&
               segment->commit(layout.window(peer), layout.window_bytes());
    }
    if (backed && !group.here(peer)) {
      backed = segment->commit(
          layout.mailboxes(peer) + static_cast<std::size_t>(rank) * mailboxes.stride,
          mailboxes.stride);
    }
  }
  return backed;
}

CollectivesState::Parts::Parts(GroupState& group, const CollectivesOptions& options)
    : mailboxes(group.size(), kMailboxBytes),
      layout(group.size(),
             static_cast<std::size_t>(std::max<std::int64_t>(0, options.window_bytes)),
             mailboxes.all_bytes,
             static_cast<std::size_t>(std::max<std::int64_t>(0, options.shared_bytes))) {
  const Deadline by = group.deadline(options.creation_deadline);
  make_alike(
      group, by,
      [&] {
        check_options(options, group.size());
        return fmt::format("window_bytes is {}\nshared_bytes is {}\n", options.window_bytes,
                           options.shared_bytes);
      },
      kObject);
  group.begin_channels();
  segment = share_segment(group, layout.segment_bytes(), by);
  // No rank sends a message before all ranks have returned from make_alike().
  make_alike(
      group, by,
      [&] {
        if (!group.one_node()) mirror = std::make_shared<Mirror>(group, segment, layout, mailboxes);
        if (back(group)) return std::string();
        throw Error(
            Code::kCapacity,
            fmt::format("no memory for the {} bytes of the window and the mailboxes of a "
                        "rank: {} bytes are free",
                        layout.window_bytes() + layout.mailboxes_bytes(), available_memory()));
      },
      kObject);
  for (const int peer : group.view().members) {
    segment->map_in(layout.control(peer), layout.control_bytes());
    segment->map_in(layout.window(peer), layout.window_bytes());
    if (group.here(peer)) segment->map_in(layout.mailboxes(peer), layout.mailboxes_bytes());
  }
}

CollectivesState::CollectivesState(const std::shared_ptr<GroupState>& group,
                                   const CollectivesOptions& options, std::uint64_t cache_bytes)
    : CollectivesState(group, options, cache_bytes, Parts(member(group), options)) {}

CollectivesState::CollectivesState(const std::shared_ptr<GroupState>& group,
                                   const CollectivesOptions& options, std::uint64_t cache_bytes,
                                   const Parts& parts)
    : group_(group),
      deadline_(options.deadline.count() > 0 ? options.deadline : group->default_deadline()),
      calls_(*group, parts.segment, parts.layout, parts.mirror, cache_bytes),
      messages_(*group,
                Mailboxes(*group, parts.segment, parts.layout, parts.mailboxes, parts.mirror)) {
  group->log(LogLevel::kInfo,
             fmt::format("collectives: {} bytes of a window, {} of mailboxes",
                         parts.layout.window_bytes(), parts.layout.mailboxes_bytes()));
}

CollectivesState::~CollectivesState() { calls_.close(); }

CallArguments CollectivesState::arguments(DataType dtype, Limit limit) const {
  CallArguments arguments(group_->rank(), group_->size(), dtype, group_->survival().waited());
  arguments.deadline(limit.count());
  return arguments;
}

// Where the elements of this rank begin among those of all ranks; 0 after a refusal.
std::int64_t CollectivesState::before(const CallArguments& check, Counts counts) const {
  if (!check.refusal().ok()) return 0;
  return std::accumulate(counts.begin(), counts.begin() + group_->rank(), std::int64_t{0});
}

CollectivesState::Limit CollectivesState::limit_of(Limit limit) const noexcept {
  return limit.count() > 0 ? limit : deadline_;
}

template <typename Move>
Status CollectivesState::call(const CallTerms& terms, Limit limit, const CallArguments& arguments,
                              const Move& move) {
  if (Status begun = calls_.begin(terms, limit_of(limit)); !begun.ok()) return begun;
  if (!arguments.refusal().ok()) return calls_.refuse(arguments.refusal());
  try {  // the call has begun: the other ranks count on it
    try {
      return move();
    } catch (const std::bad_alloc&) {
      if (calls_.published()) throw;
    }
    return calls_.refuse({Code::kCapacity, kOutOfMemory, group_->rank()});
  } catch (const std::bad_alloc&) {
    return group_->fail(kOutOfMemory);
  } catch (const std::exception& error) {
    return group_->fail(error.what());
  }
}

// NOLINTBEGIN(readability-function-size): as in collectives.cc
Status CollectivesState::all_to_all(const void* in, Counts in_counts, void* out, Counts out_counts,
                                    DataType dtype, Limit limit) {
  CallArguments check = arguments(dtype, limit);
  const std::int64_t sent = check.counts("in_counts", in_counts);
  const std::int64_t received = check.counts("out_counts", out_counts);
  check.memory("in", in, sent);
  check.memory("out", out, received);
  check.apart({in, sent}, {out, received});
  return call({.kind = CallKind::kAllToAll, .dtype = dtype}, limit, check, [&] {
    std::uint64_t& digest = calls_.record().terms.counts;
    for (const int peer : calls_.members()) {
      digest += digest_of_pair(calls_.rank(), peer, in_counts[peer]);
      digest -= digest_of_pair(peer, calls_.rank(), out_counts[peer]);
    }
    calls_.publish_counts(in_counts, out_counts);
    const std::size_t element = element_bytes(dtype);
    calls_.show(in, static_cast<std::size_t>(sent) * element, /*readers=*/1);
    return move_pairs(calls_, {bytes(in), {in_counts, element}, bytes(out), {out_counts, element}});
  });
}

Status CollectivesState::all_gather(const void* in, std::int64_t count, void* out, Counts counts,
                                    DataType dtype, Limit limit) {
  CallArguments check = arguments(dtype, limit);
  const std::int64_t sum = check.counts("counts", counts);
  check.own_count(count, counts);
  check.memory("in", in, count);
  check.memory("out", out, sum);
  check.apart({in, count}, {out, sum}, before(check, counts));
  const CallTerms terms{
      .kind = CallKind::kAllGather, .dtype = dtype, .count = sum, .counts = digest_of(counts)};
  return call(terms, limit, check, [&] {
    calls_.publish_counts(counts, {});
    return gather_all(calls_, {bytes(in), bytes(out), {counts, element_bytes(dtype)}});
  });
}

Status CollectivesState::reduce_scatter(const void* in, Counts counts, void* out, DataType dtype,
                                        ReduceOp op, Limit limit) {
  CallArguments check = arguments(dtype, limit);
  check.op(op);
  const std::int64_t sum = check.counts("counts", counts);
  const std::int64_t own = check.refusal().ok() ? counts[group_->rank()] : 0;
  check.memory("in", in, sum);
  check.memory("out", out, own);
  check.apart({in, sum}, {out, own}, -before(check, counts));
  const CallTerms terms{.kind = CallKind::kReduceScatter,
                        .dtype = dtype,
                        .op = op,
                        .count = sum,
                        .counts = digest_of(counts)};
  return call(terms, limit, check, [&] {
    calls_.publish_counts(counts, {});
    return internal::reduce_scatter(
        calls_, {bytes(in), {counts, element_bytes(dtype)}, bytes(out), dtype, op});
  });
}

Status CollectivesState::all_reduce(const void* in, void* out, std::int64_t count, DataType dtype,
                                    ReduceOp op, Limit limit) {
  CallArguments check = arguments(dtype, limit);
  check.op(op);
  check.count(count);
  check.memory("in", in, count);
  check.memory("out", out, count);
  check.apart({in, count}, {out, count}, 0);
  const CallTerms terms{.kind = CallKind::kAllReduce, .dtype = dtype, .op = op, .count = count};
  return call(terms, limit, check, [&] {
    return internal::reduce(calls_, {bytes(in), bytes(out), count, dtype, op, ReducedData::kAll});
  });
}

Status CollectivesState::reduce(const void* in, void* out, std::int64_t count, DataType dtype,
                                ReduceOp op, int root, Limit limit) {
  CallArguments check = arguments(dtype, limit);
  check.op(op);
  check.count(count);
  check.peer("root", root);
  check.memory("in", in, count);
  if (root == group_->rank()) {
    check.memory("out", out, count);
    check.apart({in, count}, {out, count}, 0);
  }
  const CallTerms terms{
      .kind = CallKind::kReduce, .dtype = dtype, .op = op, .root = root, .count = count};
  return call(terms, limit, check, [&] {
    return internal::reduce(calls_, {bytes(in), bytes(out), count, dtype, op, root});
  });
}

Status CollectivesState::broadcast(void* data, std::int64_t count, DataType dtype, int root,
                                   Limit limit) {
  CallArguments check = arguments(dtype, limit);
  check.count(count);
  check.peer("root", root);
  check.memory("data", data, count);
  const CallTerms terms{.kind = CallKind::kBroadcast, .dtype = dtype, .root = root, .count = count};
  return call(terms, limit, check, [&] {
    return internal::broadcast(calls_, bytes(data),
                               static_cast<std::size_t>(count) * element_bytes(dtype), root);
  });
}

// All ranks give equal counts. Each rank sends its own count of elements, to the root only.
Status CollectivesState::gather(const void* in, void* out, Counts counts, DataType dtype, int root,
                                Limit limit) {
  CallArguments check = arguments(dtype, limit);
  check.peer("root", root);
  const std::int64_t sum = check.counts("counts", counts);
  const bool is_root = root == group_->rank();
  const std::int64_t own = check.refusal().ok() ? counts[group_->rank()] : 0;
  check.memory("in", in, own);
  if (is_root) {
    check.memory("out", out, sum);
    check.apart({in, own}, {out, sum}, before(check, counts));
  }
  const CallTerms terms{.kind = CallKind::kGather,
                        .dtype = dtype,
                        .root = root,
                        .count = sum,
                        .counts = digest_of(counts)};
  return call(terms, limit, check, [&] {
    calls_.publish_counts(counts, {});
    std::vector<std::int64_t> sent(group_->size()), received(group_->size());
    sent[root] = counts[calls_.rank()];
    if (is_root) received.assign(counts.begin(), counts.end());
    const std::size_t element = element_bytes(dtype);
    return move_pairs(calls_, {bytes(in), {sent, element}, bytes(out), {received, element}});
  });
}

Status CollectivesState::scatter(const void* in, void* out, Counts counts, DataType dtype, int root,
                                 Limit limit) {
  CallArguments check = arguments(dtype, limit);
  check.peer("root", root);
  const std::int64_t sum = check.counts("counts", counts);
  const bool is_root = root == group_->rank();
  const std::int64_t own = check.refusal().ok() ? counts[group_->rank()] : 0;
  check.memory("out", out, own);
  if (is_root) {
    check.memory("in", in, sum);
    check.apart({in, sum}, {out, own}, -before(check, counts));
  }
  const CallTerms terms{.kind = CallKind::kScatter,
                        .dtype = dtype,
                        .root = root,
                        .count = sum,
                        .counts = digest_of(counts)};
  return call(terms, limit, check, [&] {
    calls_.publish_counts(counts, {});
    std::vector<std::int64_t> sent(group_->size()), received(group_->size());
    received[root] = counts[calls_.rank()];
    if (is_root) sent.assign(counts.begin(), counts.end());
    const std::size_t element = element_bytes(dtype);
    return move_pairs(calls_, {bytes(in), {sent, element}, bytes(out), {received, element}});
  });
}

Status CollectivesState::barrier(Limit limit) {
  return call({.kind = CallKind::kBarrier}, limit, arguments(DataType::kBytes, limit), [&] {
    return calls_.run(
        1, [](std::int64_t) {}, [](std::int64_t) {});
  });
}

std::shared_ptr<void> CollectivesState::allocate(std::int64_t bytes) const {
  if (bytes < 0)
    throw Error(Code::kInvalidArgument, fmt::format("bytes is {}, need 0 or more", bytes));
  return calls_.allocations().take(static_cast<std::size_t>(bytes));
}

Status CollectivesState::refuse(const Status& why) {
  if (Status begun = calls_.begin({}, deadline_); !begun.ok()) return begun;
  return calls_.refuse(why);
}

// A refused message has ended when it is returned.
CollectivesState::MessagePtr CollectivesState::message(const MessageSpot& spot, Limit limit) const {
  CallArguments check = arguments(spot.dtype, limit);
  check.count(spot.count);
  spot.receives ? check.peer("peer", spot.peer, MessageSpec::kAny) : check.peer("peer", spot.peer);
  check.memory("data", spot.receives ? spot.to : spot.from, spot.count);
  const bool refused = !check.refusal().ok();
  const std::size_t size =
      refused ? 0 : static_cast<std::size_t>(spot.count) * element_bytes(spot.dtype);
  auto made = std::make_shared<MessageState>(MessageSpec{.bytes = size,
                                                         .dtype = spot.dtype,
                                                         .peer = spot.peer,
                                                         .tag = spot.tag,
                                                         .receives = spot.receives,
                                                         .from = bytes(spot.from),
                                                         .to = bytes(spot.to)},
                                             limit_of(limit));
  if (refused) made->end(check.refusal());
  return made;
}

CollectivesState::MessagePtr CollectivesState::begin(const MessageSpot& spot, Limit limit) {
  MessagePtr begun = message(spot, limit);
  if (!begun->has_ended()) messages_.begin(begun);
  return begun;
}

Status CollectivesState::transfer(const MessageSpot& spot, int* source, Limit limit) {
  const MessagePtr moved = message(spot, limit);
  Status status = moved->has_ended() ? moved->status : messages_.finish(moved);
  if (source != nullptr) *source = moved->source;
  return status;
}

// NOLINTEND(readability-function-size)

}  // namespace ferry::internal
