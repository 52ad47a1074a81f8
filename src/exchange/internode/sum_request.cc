#include "exchange/internode/sum_request.h"

#include <algorithm>
#include <iterator>

#include "exchange/internode/sum_server.h"

namespace ferry::internal {

SumRequest::SumRequest(SumServer& server, int requester, const MessageHead& head,
                       const SumFormat& format)
    : server_(server),
      links_(server.links()),
      requester_(requester),
      head_(head),
      format_(format),
      asked_({&links_.everybody()}, head.level, format,
             server.reply_layout(server.row_format(format), format.scalars)) {}

void SumRequest::read(std::span<const std::byte> units) {
  if (check(units)) {
    units_.assign(units.begin(), units.end());
    ByteReader reader(units_);
    for (SumUnit unit; read_sum_unit(reader, format_.tp_size, unit);) asked_.add(unit);
  } else {
    ranks_.clear();
  }
}

void SumRequest::pass_on() { asked_.send(server_, head_.number, head_.source); }

// Finds the ranks whose rows are requested. False: this rank cannot fulfil the request.
bool SumRequest::check(std::span<const std::byte> units) {
  std::vector<bool> asked(links_.num_ranks());
  ByteReader reader(units);
  SumUnit unit;
  while (reader.remaining() > 0) {
    if (!read_sum_unit(reader, format_.tp_size, unit)) return false;
    for (int i = 0; i < unit.num_summands; ++i) {
      const Summand term = unit[i];
      if (!reaches(term)) return false;
      for (int p = 0; p < format_.tp_size; ++p) asked[term.places[p].rank] = true;
    }
  }
  for (int rank = 0; rank < links_.num_ranks(); ++rank) {
    if (asked[rank]) ranks_.push_back(rank);
  }
  return true;
}

// True if all ranks of a summand are on one node: this one, or one further in than the level at
// which the request crossed.
bool SumRequest::reaches(const Summand& term) const {
  const ForwardingTable& table = links_.everybody();
  const Topology& topology = links_.topology();
  for (int p = 0; p < format_.tp_size; ++p) {
    const int rank = term.places[p].rank;
    if (rank < 0 || rank >= links_.num_ranks()) return false;
    const int next_hop = table.next_hop[rank];
    const bool inside =
        next_hop < 0 ? links_.view().here(rank) : table.mates[next_hop].level > head_.level;
    if (!inside || topology.node_of(rank) != topology.node_of(term.places[0].rank)) return false;
  }
  return true;
}

bool SumRequest::serve() {
  const Ready state = ready();
  if (state == Ready::kNo) return false;
  if (state == Ready::kYes) {
    if (!out_) {
      const RowFormat format = server_.row_format(format_);
      for (int worker = 0; worker < server_.workers().size(); ++worker)
        sums_.emplace_back(format, server_.sum_type(format.type), links_.topology().num_levels());
      out_.emplace(links_.messages(), requester_,
                   links_.head(kSumReply, head_.number, head_.level, head_.source));
    }
    while (at_ < units_.size()) {
      find_replies();
      if (replies_.empty()) return false;
      write_replies();
    }
    out_->flush();
    links_.count_all(requester_, out_->bytes());
  }
  server_.forget(head_.number, head_.source);
  return true;
}

// kNever: a rank refused or ended the combine with an error, which the served rank finds too. This
// is checked at each look, since a mate further in may find the error first and then send no reply.
SumRequest::Ready SumRequest::ready() const {
  const WindowView& view = links_.view();
  for (const int rank : ranks_) {
    // Acquire: their rows and records are there. Partner: publish().
    const std::uint64_t seen = view.control(rank).progress.load(std::memory_order_acquire);
    if (seen < progress_of(head_.number, Stage::kDelivered)) return Ready::kNo;
    const Record& theirs = view.record(rank, head_.number);
    const bool fits = theirs.number == head_.number && theirs.status == Code::kOk &&
                      theirs.terms.kind == OperationKind::kCombine &&
                      theirs.terms.hidden == format_.hidden &&
                      theirs.terms.row_type == format_.row_type;
    if (!fits) return Ready::kNever;
  }
  return Ready::kYes;
}

void SumRequest::add_awaited(std::vector<int>& mates) const {
  if (ready() == Ready::kYes) asked_.add_awaited(mates);
}

// Finds the next replies to write, up to one message for each worker: all sums of mates that they
// need have arrived, and there is room for them.
void SumRequest::find_replies() {
  replies_.clear();
  std::size_t left = sums_.size() * MessageStream::kMessageBytes;
  ByteReader reader(std::span<const std::byte>(units_).subspan(at_));
  SumUnit unit;
  while (read_sum_unit(reader, format_.tp_size, unit)) {
    const std::size_t bytes = asked_.layout().bytes(unit.num_summands);
    if (bytes > left && !replies_.empty()) return;
    const Subtrees subtrees = asked_.subtrees_of(unit);
    for (int i = 0; i < subtrees.count(); ++i) {
      if (!asked_.has_arrived(subtree_ + i)) return;
    }
    const MessageStream::Place place = out_->append(bytes);
    if (!place.data) return;
    replies_.push_back({unit, subtree_, place});
    links_.count_rows(requester_, asked_.layout().rows_bytes(unit.num_summands));
    left -= std::min(left, bytes);
    subtree_ += subtrees.count();
    at_ = units_.size() - reader.remaining();
  }
}

// Messages are sent in the order of the requested sums, each when its last sum is written.
void SumRequest::write_replies() {
  const std::int64_t count = std::ssize(replies_);
  WorkerPool& workers = server_.workers();
  workers.run_locked(workers.num_shares(count), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t share = begin; share < end; ++share) {
      const auto [first, last] = workers.share(count, static_cast<int>(share));
      for (std::int64_t i = first; i < last; ++i) write_reply(replies_[i], sums_[share]);
    }
  });
  for (const Reply& reply : replies_) out_->written(reply.place);
}

// Fills in `row`; for a row of another node all but its address. False: the row was not published.
bool SumRequest::find_row(const Summand& term, RowSum::Row& row) const {
  const WindowView& view = links_.view();
  row.owner = term.owner;
  row.weight = term.weight;
  row.num_parts = format_.tp_size;
  for (int p = 0; p < format_.tp_size; ++p) {
    const auto [rank, index] = term.places[p];
    if (!view.here(rank)) return true;
    const Record& theirs = view.record(rank, head_.number);
    if (index < 0 || index >= theirs.num_rows) return false;
    row.parts[p] =
        view.window(rank) + theirs.published.rows_offset + index * theirs.published.pitch_bytes;
    row.encoded = theirs.encoded;
  }
  return true;
}

void SumRequest::write_reply(const Reply& reply, RowSum& sum) const {
  const ReplyLayout& layout = asked_.layout();
  const SumUnit& unit = reply.unit;
  const Subtrees subtrees = asked_.subtrees_of(unit);
  bool published = true;
  const auto find = [&](std::int64_t item, RowSum::Row& row) {
    published = find_row(unit[item], row) && published;
  };
  const auto theirs = [&](int i) { return asked_.reply(reply.subtree + i); };
  sum.clear(0, unit.num_summands);
  layout.exact ? sum.set_rows(subtrees, find, theirs) : sum.set_sums(subtrees, find, theirs);
  std::byte* const out = reply.place.data;
  if (!published) {
    std::fill_n(out, layout.bytes(unit.num_summands), std::byte{0});
    return;
  }
  if (layout.exact) {
    for (int i = 0; i < unit.num_summands; ++i) sum.ship(i, out + i * layout.row_bytes);
  } else {
    sum.sum(head_.level + 1, out);
  }
  if (layout.scalars > 0) write_scalars(reply, subtrees);
}

void SumRequest::write_scalars(const Reply& reply, const Subtrees& subtrees) const {
  const ReplyLayout& layout = asked_.layout();
  const WindowView& view = links_.view();
  const SumUnit& unit = reply.unit;
  auto* const out =
      reinterpret_cast<float*>(reply.place.data + layout.scalars_at(unit.num_summands));
  const auto own = [&](std::int64_t item, int tp_rank) {
    const auto [rank, index] = unit[item].places[tp_rank];
    return reinterpret_cast<const float*>(
               view.window(rank) + view.record(rank, head_.number).published.weights_offset) +
           std::int64_t{index} * layout.scalars;
  };
  const auto theirs = [&](int i) -> const std::byte* {
    const std::byte* sums = asked_.reply(reply.subtree + i);
    return sums ? sums + layout.scalars_at(static_cast<int>(subtrees[i].items.size())) : sums;
  };
  set_scalars(subtrees, {layout.scalars, format_.tp_size}, own, theirs,
              [&](std::int64_t item) { return out + item * layout.scalars; });
}

}  // namespace ferry::internal
