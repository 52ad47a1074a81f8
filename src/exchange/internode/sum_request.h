// SumRequest: the sums that a served rank has requested in one combine, until all are sent. The
// workers add the rows of this node, once their ranks have published them, and the replies of mates
// further in. Sums are sent when there is room. The source of the tokens sums rows of its own node
// in the same way (RowSum, RequestedSums).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "exchange/internode/mate_links.h"
#include "exchange/internode/message_layout.h"
#include "exchange/internode/message_stream.h"
#include "exchange/internode/requested_sums.h"
#include "exchange/sums/row_sum.h"

namespace ferry::internal {

class SumServer;

class SumRequest {
 public:
  // `requester`: the rank that sent the request. `head` has the rank for which it was made, and the
  // level at which it crossed.
  SumRequest(SumServer& server, int requester, const MessageHead& head, const SumFormat& format);

  // Reads the units of the request. A request that this rank cannot fulfil gets no reply, and
  // counts as served.
  void read(std::span<const std::byte> units);
  // Requests from the mates further in their part of the sums. Call once, after read().
  void pass_on();
  // Sends the sums that can be sent now. True if the request is done: all sums were sent, or none
  // will be (Ready::kNever).
  bool serve();
  std::uint64_t number() const noexcept { return head_.number; }
  // Appends the mates whose replies are missing, if only replies are missing.
  void add_awaited(std::vector<int>& mates) const;

 private:
  enum class Ready { kNo, kYes, kNever };
  // A reply that can be written now: its rows and sums have arrived, and there is room for it.
  struct Reply {
    SumUnit unit;
    std::size_t subtree;  // index in asked_ of the unit's first subtree
    MessageStream::Place place;
  };

  bool check(std::span<const std::byte> units);
  bool reaches(const Summand& term) const;
  Ready ready() const;
  void find_replies();
  void write_replies();
  bool find_row(const Summand& term, RowSum::Row& row) const;
  void write_reply(const Reply& reply, RowSum& sum) const;
  void write_scalars(const Reply& reply, const Subtrees& subtrees) const;

  SumServer& server_;
  MateLinks& links_;
  int requester_;
  MessageHead head_;
  SumFormat format_;
  RequestedSums asked_;  // from mates further in
  std::vector<std::byte> units_;
  std::size_t at_ = 0;          // bytes of units_ that are served
  std::size_t subtree_ = 0;     // index in asked_ for the next unit
  std::vector<int> ranks_;      // the ranks of the requested rows
  std::vector<RowSum> sums_;    // [workers] made like out_, before the first reply
  std::vector<Reply> replies_;  // the next replies to write
  std::optional<MessageStream> out_;
};

}  // namespace ferry::internal
