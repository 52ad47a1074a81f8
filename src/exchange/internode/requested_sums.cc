#include "exchange/internode/requested_sums.h"

#include <algorithm>

#include "base/check.h"
#include "exchange/internode/sum_server.h"

namespace ferry::internal {

RequestedSums::RequestedSums(const SubtreeRule& rule, int level, const SumFormat& format,
                             const ReplyLayout& layout)
    : rule_(rule),
      level_(level),
      format_(format),
      layout_(layout),
      terms_(rule.forwarding->mates.size()),
      bytes_(terms_.size()),
      sums_(terms_.size()) {}

Subtrees RequestedSums::subtrees_of(const SumUnit& unit) const {
  return {rule_, 0, unit.num_summands, [&unit](std::int64_t term) { return unit.rank_of(term); }};
}

void RequestedSums::add(const SumUnit& unit) {
  const Subtrees subtrees = subtrees_of(unit);
  for (int i = 0; i < subtrees.count(); ++i) {
    const auto& [next_hop, level, terms] = subtrees[i];
    if (next_hop < 0) {
      replies_.push_back({next_hop, 0, 0});
      continue;
    }
    const std::size_t at = bytes_[next_hop];
    bytes_[next_hop] += layout_.bytes(static_cast<int>(terms.size()));
    replies_.push_back({next_hop, at, bytes_[next_hop]});
    append_sum_unit(unit, terms, terms_[next_hop]);
  }
}

void RequestedSums::send(SumServer& server, std::uint64_t number, int source) {
  const std::vector<ForwardingTable::Mate>& mates = rule_.forwarding->mates;
  for (std::size_t i = 0; i < mates.size(); ++i) {
    if (mates[i].level <= level_) {
      FERRY_CHECK(bytes_[i], ==, 0u);
      continue;
    }
    FERRY_CHECK(sums_[i], ==, nullptr);
    std::vector<std::byte> body;
    append_format(format_, body);
    append(body, terms_[i]);
    terms_[i] = {};
    sums_[i] = server.ask(mates[i], {number, source, bytes_[i]}, body);
  }
}

const std::byte* RequestedSums::reply(std::size_t subtree) const noexcept {
  const Reply& reply = replies_[subtree];
  return reply.next_hop < 0 ? nullptr : sums_[reply.next_hop]->memory.get() + reply.at;
}

bool RequestedSums::has_arrived(std::size_t subtree) const noexcept {
  const Reply& reply = replies_[subtree];
  return reply.next_hop < 0 || sums_[reply.next_hop]->come() >= reply.end;
}

void RequestedSums::add_awaited(std::vector<int>& mates) const {
  for (const IncomingSums* const sums : sums_) {
    if (sums && !sums->whole()) mates.push_back(sums->mate);
  }
}

}  // namespace ferry::internal
