// A client's question as it comes: which rows of this node it wants summed, and which of nodes
// further in, whose mates are asked for them in turn. Everything in a message is looked at before
// it is believed.
#include <cstring>

#include "exchange/internode/forwarder.h"

namespace ferry::internal {

std::size_t term_bytes(int num_positions) noexcept {
  return sizeof(TermHead) + num_positions * sizeof(TermPlace);
}

void Forwarder::read_ask(int from, const MessageHead& head, std::span<const std::byte> body) {
  Ask ask;
  if (body.size() < sizeof ask) return;
  std::memcpy(&ask, body.data(), sizeof ask);
  const bool sane = ask.num_positions >= 1 && ask.num_positions <= kMaxPositions &&
                    ask.hidden >= 1 && ask.hidden <= config_.max_output_row_bytes &&
                    ask.row_type >= 0 &&
                    ask.row_type <= static_cast<std::int32_t>(DataType::kBytes) &&
                    ask.scalars >= 0 && ask.scalars <= kMaxEntries;
  const std::deque<SumRequest>& before = requests_[head.origin];
  if (!sane || (!before.empty() && before.back().number >= head.number)) return;
  const std::span<const std::byte> terms = body.subspan(sizeof ask);
  SumRequest request{.number = head.number,
                     .origin = head.origin,
                     .asker = from,
                     .level = head.level,
                     .ask = ask,
                     .terms = {terms.begin(), terms.end()},
                     .parts = std::vector<Part>(forwarding_.mates.size())};
  const HomeFormat format{.wire = combine_wire_,
                          .type = static_cast<DataType>(ask.row_type),
                          .hidden = ask.hidden,
                          .partials = static_cast<Partials>(ask.partials),
                          .weighted = ask.weighted != 0};
  request.rows = std::make_unique<HomeRows>(format);
  std::vector<Question> questions(forwarding_.mates.size());
  if (!split(request, questions)) request.terms.clear();
  const std::span<const ForwardingTable::Mate> mates = further_in(head.level);
  for (std::size_t next_hop = forwarding_.mates.size() - mates.size();
       next_hop < forwarding_.mates.size(); ++next_hop) {
    const ForwardingTable::Mate& mate = forwarding_.mates[next_hop];
    const Question& question = questions[next_hop];
    if (question.answer_bytes > 0)
      request.parts[next_hop].sums =
          &expect(head.number, head.origin, mate.rank, question.answer_bytes);
    this->ask(mate, head.number, head.origin, ask, question.terms);
  }
  requests_[head.origin].push_back(std::move(request));
}

// The ranks whose rows are asked for, and what mates further in are asked. False: what is there is
// no question for this rank.
bool Forwarder::split(SumRequest& request, std::vector<Question>& questions) const {
  const std::size_t term = term_bytes(request.ask.num_positions);
  const std::size_t bytes = request.terms.size();
  const Topology& topology = group_->topology();
  std::vector<bool> asked(view_.num_ranks());
  for (std::size_t at = 0; at < bytes;) {
    std::int64_t num_terms;
    if (bytes - at < sizeof num_terms) return false;
    std::memcpy(&num_terms, request.terms.data() + at, sizeof num_terms);
    at += sizeof num_terms;
    const bool whole = num_terms >= 1 && num_terms <= kMaxEntries && num_terms * term <= bytes - at;
    if (!whole) return false;
    for (int i = 0; i < num_terms * request.ask.num_positions; ++i) {
      const int of_term = i / request.ask.num_positions;
      const int rank = place_of(request, at, of_term, i % request.ask.num_positions).rank;
      const int first = place_of(request, at, of_term, 0).rank;
      if (!reaches(rank, request.level) || topology.node_of(rank) != topology.node_of(first))
        return false;
      asked[rank] = true;
    }
    const Subtrees subtrees = subtrees_of(request, at, static_cast<int>(num_terms));
    for (int i = 0; i < subtrees.count(); ++i) {
      if (subtrees[i].next_hop >= 0)
        add_unit(request, at, subtrees[i].items, questions[subtrees[i].next_hop]);
    }
    at += num_terms * term;
  }
  for (int rank = 0; rank < view_.num_ranks(); ++rank) {
    if (asked[rank]) request.ranks.push_back(rank);
  }
  return true;
}

// Of this node, or further in than `level`.
bool Forwarder::reaches(int rank, int level) const noexcept {
  if (rank < 0 || rank >= view_.num_ranks()) return false;
  const int next_hop = forwarding_.next_hop[rank];
  return next_hop < 0 ? view_.here(rank) : forwarding_.mates[next_hop].level > level;
}

void Forwarder::add_unit(const SumRequest& request, std::size_t first,
                         std::span<const std::int64_t> items, Question& question) const {
  const std::size_t term = term_bytes(request.ask.num_positions);
  std::vector<std::byte>& terms = question.terms;
  const auto put = [&terms](const void* from, std::size_t bytes) {
    const auto* begin = static_cast<const std::byte*>(from);
    terms.insert(terms.end(), begin, begin + bytes);
  };
  const auto num_terms = static_cast<std::int64_t>(items.size());
  put(&num_terms, sizeof num_terms);
  for (const std::int64_t item : items) put(request.terms.data() + first + item * term, term);
  question.answer_bytes +=
      unit_bytes(static_cast<int>(num_terms), request.ask.scalars, request.rows->format());
}

TermPlace Forwarder::place_of(const SumRequest& request, std::size_t first, std::int64_t term,
                              int position) const {
  TermPlace place;
  std::memcpy(&place,
              request.terms.data() + first + term * term_bytes(request.ask.num_positions) +
                  sizeof(TermHead) + position * sizeof place,
              sizeof place);
  return place;
}

Subtrees Forwarder::subtrees_of(const SumRequest& request, std::size_t first, int num_terms) const {
  return {{&forwarding_}, 0, num_terms, [&](std::int64_t term) {
            return place_of(request, first, term, 0).rank;
          }};
}

}  // namespace ferry::internal
