// SumRequest: the sums that a served rank has requested in one combine, until all are sent.
// The rows of this node are summed once all ranks that have some have published their outputs, and
// with them the replies of mates further in, by the workers; sums leave as there is room. The
// source of the tokens sums its own in the same way (RowSum, RequestedSums).
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
  // `requester`: who sent the request; `head` says for whom and over which level.
  SumRequest(SumServer& server, int requester, const MessageHead& head, const SumFormat& format);

  // Reads the units of the request. A request that this rank cannot fulfil gets an empty reply.
  void read(std::span<const std::byte> units);
  // Requests their part of the sums from the mates further in. Once, after read().
  void pass_on();
  // Sends what can be sent now. True when the request is done with.
  bool serve();
  std::uint64_t number() const noexcept { return head_.number; }
  // The mates whose replies are missing, where nothing else is.
  void add_awaited(std::vector<int>& mates) const;

 private:
  enum class Ready { kNo, kYes, kNever };
  // A reply that can be written now: all that it sums is here, and there is room for it.
  struct Answer {
    SumUnit unit;
    std::size_t subtree;  // of asked_, the first of the unit
    MessageStream::Place place;
  };

  bool check(std::span<const std::byte> units);
  bool reaches(const Summand& term) const;
  Ready ready() const;
  void find_replies();
  void write_replies();
  bool find_row(const Summand& term, RowSum::Row& row) const;
  void write_reply(const Answer& answer, RowSum& sum) const;
  void write_scalars(const Answer& answer, const Subtrees& subtrees) const;

  SumServer& server_;
  MateLinks& links_;
  int requester_;
  MessageHead head_;
  SumFormat format_;
  RequestedSums asked_;  // of mates further in
  std::vector<std::byte> units_;
  std::size_t at_ = 0;           // bytes of units_ served
  std::size_t subtree_ = 0;      // of asked_, the first of the next unit
  std::vector<int> ranks_;       // whose rows are requested
  std::vector<RowSum> sums_;     // [workers] from the first unit on, like out_
  std::vector<Answer> replies_;  // that are written next
  std::optional<MessageStream> out_;
};

}  // namespace ferry::internal
