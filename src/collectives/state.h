// CollectivesState: the implementation of Collectives. All ranks construct it together. It checks
// the arguments of each call; if they are wrong on one rank, the call is refused on all ranks.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collectives/arguments.h"
#include "collectives/calls.h"
#include "collectives/messages.h"
#include "ferry/collectives.h"
#include "group/state.h"

namespace ferry::internal {

class CollectivesState {
 public:
  using Counts = std::span<const std::int64_t>;
  using Limit = std::chrono::nanoseconds;  // 0: that of the options

  // Collective. Throws on all ranks together. `cache_bytes`: of the last-level caches of the node.
  CollectivesState(const std::shared_ptr<GroupState>& group, const CollectivesOptions& options,
                   std::uint64_t cache_bytes);
  // A Collectives on a node with other caches, for tests.
  static ferry::Collectives with_caches(const Group& group, const CollectivesOptions& options,
                                        std::uint64_t cache_bytes);
  ~CollectivesState();
  CollectivesState(const CollectivesState&) = delete;
  CollectivesState& operator=(const CollectivesState&) = delete;

  GroupState& group() const noexcept { return *group_; }

  Status all_to_all(const void* in, Counts in_counts, void* out, Counts out_counts, DataType dtype,
                    Limit limit);
  Status all_gather(const void* in, std::int64_t count, void* out, Counts counts, DataType dtype,
                    Limit limit);
  Status reduce_scatter(const void* in, Counts counts, void* out, DataType dtype, ReduceOp op,
                        Limit limit);
  Status all_reduce(const void* in, void* out, std::int64_t count, DataType dtype, ReduceOp op,
                    Limit limit);
  Status reduce(const void* in, void* out, std::int64_t count, DataType dtype, ReduceOp op,
                int root, Limit limit);
  Status broadcast(void* data, std::int64_t count, DataType dtype, int root, Limit limit);
  Status gather(const void* in, void* out, Counts counts, DataType dtype, int root, Limit limit);
  Status scatter(const void* in, void* out, Counts counts, DataType dtype, int root, Limit limit);
  Status barrier(Limit limit);
  std::shared_ptr<void> allocate(std::int64_t bytes) const;
  Status refuse(const Status& why);
  std::vector<std::string> latest_calls(int rank) const { return calls_.latest(rank); }

  // A message that this rank sends or receives.
  struct MessageSpot {
    bool receives = false;
    const void* from = nullptr;  // the data to send
    void* to = nullptr;          // where a receive writes
    std::int64_t count;          // elements
    DataType dtype;
    int peer;
    std::int64_t tag;
  };
  using MessagePtr = std::shared_ptr<MessageState>;
  MessagePtr begin(const MessageSpot& spot, Limit limit);
  Status progress(bool waits) { return messages_.progress(waits); }
  // Sends or receives a message and waits for its end. `source`: receives the sender; may be null.
  Status transfer(const MessageSpot& spot, int* source, Limit limit);

 private:
  struct Parts;
  CollectivesState(const std::shared_ptr<GroupState>& group, const CollectivesOptions& options,
                   std::uint64_t cache_bytes, const Parts& parts);
  CallArguments arguments(DataType dtype, Limit limit) const;
  std::int64_t before(const CallArguments& check, Counts counts) const;
  Limit limit_of(Limit limit) const noexcept;
  MessagePtr message(const MessageSpot& spot, Limit limit) const;
  // Begins the call; moves its data unless the arguments are refused.
  template <typename Move>
  Status call(const CallTerms& terms, Limit limit, const CallArguments& arguments,
              const Move& move);

  std::shared_ptr<GroupState> group_;
  Limit deadline_;
  Calls calls_;
  Messages messages_;
};

}  // namespace ferry::internal
