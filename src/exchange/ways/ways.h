// Ways: all ways by which an exchange reaches other nodes. There is none on one node, otherwise
// one, or two if two links join the groups of the outermost level. Control messages take the first
// way. If all ranks take part in an operation, its rows and sums are divided between both ways, by
// token. Copies of this value share the ways, which may outlive their exchange (keep_open).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "exchange/setup/record.h"
#include "ferry/exchange.h"
#include "routing/active_set.h"
#include "topology/forwarding_table.h"

namespace ferry::internal {

class GroupState;
class Way;
class WorkerPool;
struct Setup;
struct WindowView;

class Ways {
 public:
  // Collective: all ranks number the channels of their ways in the same order. `everybody`: all
  // ranks of the group make the exchange.
  Ways(GroupState& group, const Setup& setup, const WindowView& view, bool everybody);

  // True on one node.
  bool none() const noexcept { return ways_.empty(); }
  // The ways that the rows and sums of an operation take.
  std::vector<Way*> of(const ActiveSet& active) const;
  bool both(const ActiveSet& active) const noexcept { return ways_.size() > 1 && active.all(); }
  // The index of the way that a token takes.
  std::size_t of_token(std::int64_t token, std::size_t num_ways) const noexcept;

  // Control messages; on one node these functions do nothing. send_progress() sends this rank's
  // flags and record to other nodes once its progress has reached `stage`.
  void send_progress(std::uint64_t number, Stage stage) const;
  // Sends this rank's flags, and so its read_through. `number`: an operation that this rank has
  // finished.
  void send_read_through(std::uint64_t number) const;
  // Sends that this rank destroys its exchange.
  void send_departure() const;
  // Call before the first operation of another set of ranks. Sends this rank's read_through to the
  // ranks of the last operation and to those of `active`. Returns the table of `active`, for use().
  ForwardingTable send_set(const ActiveSet& active) const;
  void use(ForwardingTable table) const;
  // The view has begun, and `last` is the last operation before it: drops what this rank requested
  // before, and uses the table of the ranks of the view.
  void begin_view(std::uint64_t last) const;
  // A number that all ranks have for the exchange; 0 on one node.
  std::uint32_t number() const noexcept;
  // The table that the first way uses now. Not to be called on one node.
  const ForwardingTable& table() const noexcept;
  // [ranks] ForwardingTable::last_hop of the first way or the second; null: there is no such way.
  const std::vector<int>* last_hop(std::size_t way = 0) const noexcept;
  // [ranks] the ranks to which this rank sends.
  std::vector<bool> mates() const;
  // True if this rank writes the flags and records of `peer` into the segment of its node.
  bool serves(int peer) const noexcept;

  // Whether tokens are summed by subtrees, which they are unless sums are exact; and the type of
  // these sums.
  bool by_subtree() const noexcept;
  DataType sum_type(DataType row_type) const noexcept;
  int num_levels() const noexcept;  // 0 on one node
  // Call when the replies to this rank's requests in a combine are not read any more.
  void forget_sums(std::uint64_t number) const;

  // Sets the workers that sum rows for other ranks. Call before the first operation.
  void use(const std::shared_ptr<WorkerPool>& workers) const;
  // Bytes that this rank sent over links of `level` and further out.
  CrossedBytes crossed(int level) const noexcept;
  // On a newcomer that has joined the exchange: reads the messages that came before.
  void release() const;
  // Call at the end of the exchange: the ways stay open while other ranks may still send messages
  // through this rank.
  void keep_open();

 private:
  GroupState* group_;
  std::vector<std::shared_ptr<Way>> ways_;
};

}  // namespace ferry::internal
