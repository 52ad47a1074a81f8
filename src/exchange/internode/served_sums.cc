// A client's sums: its tokens' rows of this node are summed once all outputs that it asked for are
// published, with them what mates further in have summed, and sent as there is room.
#include <algorithm>
#include <cstring>

#include "base/round_up.h"
#include "exchange/internode/forwarder.h"

namespace ferry::internal {

std::size_t Forwarder::rows_bytes(int num_terms, const HomeFormat& format) const noexcept {
  return exact() ? num_terms * format.wire_bytes()
                 : format.hidden * element_bytes(sum_type(format.type));
}

std::size_t Forwarder::scalars_at(int num_terms, const HomeFormat& format) const noexcept {
  return round_up(rows_bytes(num_terms, format), sizeof(float));
}

std::size_t Forwarder::unit_bytes(int num_terms, int scalars,
                                  const HomeFormat& format) const noexcept {
  return round_up(scalars_at(num_terms, format) + num_terms * scalars * sizeof(float), kUnitAlign);
}

// True when it is done with.
bool Forwarder::serve(SumRequest& request) {
  const Ready state = ready(request);
  if (state == Ready::kNo) return false;
  if (state == Ready::kYes) {
    const HomeFormat& format = request.rows->format();
    if (!request.out) {
      request.sum = std::make_unique<Summands>(format.hidden, format.wire_bytes());
      request.sums = std::make_unique<SubtreeSums>(format.hidden, sum_type(format.type),
                                                   group_->topology().num_levels());
      request.out = std::make_unique<MessageStream>(
          messages(), request.asker, head(kSums, request.number, request.level, request.origin));
    }
    while (request.at < request.terms.size()) {
      if (!serve_unit(request)) return false;
    }
    request.out->flush();
    count_all(request.asker, request.out->bytes());
  }
  forget_sums(request.number, request.origin);
  return true;
}

// Never: a rank refused or ended the combine with an error, and the client knows it too. Asked
// again at each look: a mate further in may find out first, and never send its part.
Forwarder::Ready Forwarder::ready(const SumRequest& request) const {
  for (const int rank : request.ranks) {
    // Acquire: their rows and records are there. Partner: publish().
    const std::uint64_t seen = view_.control(rank).progress.load(std::memory_order_acquire);
    if (seen < progress_of(request.number, Stage::kDelivered)) return Ready::kNo;
    const Record& theirs = view_.record(rank, request.number);
    const bool fits = theirs.number == request.number && theirs.status == Code::kOk &&
                      theirs.terms.kind == OperationKind::kCombine &&
                      theirs.terms.hidden == request.ask.hidden &&
                      static_cast<std::int32_t>(theirs.terms.row_type) == request.ask.row_type;
    if (!fits) return Ready::kNever;
  }
  return Ready::kYes;
}

// False: not all of it is here, or there is no room now.
bool Forwarder::serve_unit(SumRequest& request) {
  const HomeFormat& format = request.rows->format();
  std::int64_t num_terms;
  std::memcpy(&num_terms, request.terms.data() + request.at, sizeof num_terms);
  const int count = static_cast<int>(num_terms);
  const std::size_t first = request.at + sizeof num_terms;
  const Subtrees subtrees = subtrees_of(request, first, count);
  if (!has_come(request, subtrees)) return false;
  std::byte* out = request.out->append(unit_bytes(count, request.ask.scalars, format));
  if (out == nullptr) return false;
  count_rows(request.asker, rows_bytes(count, format));
  for (int i = 0; i < subtrees.count(); ++i) {
    if (subtrees[i].next_hop < 0 && !find_rows(request, first, subtrees[i].items))
      request.rows->clear();
  }
  if (exact()) {
    ship(request, subtrees, out);
  } else {
    add_up(request, subtrees, out);
  }
  if (request.ask.scalars > 0)
    put_scalars(request, first, subtrees,
                reinterpret_cast<float*>(out + scalars_at(count, format)));
  for (int i = 0; i < subtrees.count(); ++i) {
    if (subtrees[i].next_hop >= 0)
      request.parts[subtrees[i].next_hop].at += part_bytes(request, subtrees[i]);
  }
  request.at = first + num_terms * term_bytes(request.ask.num_positions);
  return true;
}

std::size_t Forwarder::part_bytes(const SumRequest& request,
                                  const Subtrees::Subtree& subtree) const noexcept {
  return unit_bytes(static_cast<int>(subtree.items.size()), request.ask.scalars,
                    request.rows->format());
}

bool Forwarder::has_come(const SumRequest& request, const Subtrees& subtrees) const {
  for (int i = 0; i < subtrees.count(); ++i) {
    if (subtrees[i].next_hop < 0) continue;
    const Part& part = request.parts[subtrees[i].next_hop];
    if (part.sums->filled < part.at + part_bytes(request, subtrees[i])) return false;
  }
  return true;
}

// Of this node. False: they were not published.
bool Forwarder::find_rows(SumRequest& request, std::size_t first,
                          std::span<const std::int64_t> items) const {
  const int num_positions = request.ask.num_positions;
  request.rows->clear();
  for (const std::int64_t item : items) {
    TermHead term;
    std::memcpy(&term, request.terms.data() + first + item * term_bytes(num_positions),
                sizeof term);
    HomeRows::Row& row = request.rows->add();
    row.owner = term.owner;
    row.weight = term.weight;
    row.num_parts = num_positions;
    for (int p = 0; p < num_positions; ++p) {
      const TermPlace place = place_of(request, first, item, p);
      const Record& theirs = view_.record(place.rank, request.number);
      if (place.row < 0 || place.row >= theirs.num_rows) return false;
      row.parts[p] = view_.window(place.rank) + theirs.published.rows_offset +
                     place.row * theirs.published.pitch_bytes;
      row.encoded = theirs.encoded;
    }
  }
  return true;
}

void Forwarder::ship(SumRequest& request, const Subtrees& subtrees, std::byte* out) const {
  const std::size_t row_bytes = request.rows->format().wire_bytes();
  for (int i = 0; i < subtrees.count(); ++i) {
    const auto& [next_hop, level, items] = subtrees[i];
    for (std::size_t j = 0; j < items.size(); ++j) {
      std::byte* to = out + items[j] * row_bytes;
      if (next_hop >= 0) {
        std::memcpy(
            to, request.parts[next_hop].sums->data() + request.parts[next_hop].at + j * row_bytes,
            row_bytes);
      } else if (static_cast<int>(j) < request.rows->count()) {
        request.sum->clear();
        request.rows->ship(static_cast<int>(j), *request.sum, to);
      }
    }
  }
}

void Forwarder::add_up(SumRequest& request, const Subtrees& subtrees, std::byte* out) const {
  const DataType type = sum_type(request.rows->format().type);
  request.sum->clear();
  if (subtrees.count() == 1 && subtrees[0].next_hop < 0)
    return request.rows->add_up(*request.sum, type, out);
  request.sums->clear();
  for (int i = 0; i < subtrees.count(); ++i) {
    const auto& [next_hop, level, items] = subtrees[i];
    if (next_hop < 0) request.rows->add_up(*request.sum, type, request.sums->own());
    request.sums->add(
        level, next_hop < 0 ? request.sums->own()
                            : request.parts[next_hop].sums->data() + request.parts[next_hop].at);
  }
  request.sums->sum(request.level + 1, out);
}

// The weights of each row, over all tensor-parallel positions.
void Forwarder::put_scalars(const SumRequest& request, std::size_t first, const Subtrees& subtrees,
                            float* out) const {
  const int scalars = request.ask.scalars;
  for (int i = 0; i < subtrees.count(); ++i) {
    const auto& [next_hop, level, items] = subtrees[i];
    for (std::size_t j = 0; j < items.size(); ++j) {
      float* to = out + items[j] * scalars;
      if (next_hop >= 0) {
        const Part& part = request.parts[next_hop];
        const std::size_t at = scalars_at(static_cast<int>(items.size()), request.rows->format()) +
                               j * scalars * sizeof *to;
        std::memcpy(to, part.sums->data() + part.at + at, scalars * sizeof *to);
        continue;
      }
      for (int p = 0; p < request.ask.num_positions && request.rows->count() > 0; ++p) {
        const TermPlace place = place_of(request, first, items[j], p);
        const auto* theirs =
            reinterpret_cast<const float*>(
                view_.window(place.rank) +
                view_.record(place.rank, request.number).published.weights_offset) +
            static_cast<std::int64_t>(place.row) * scalars;
        for (int s = 0; s < scalars; ++s) to[s] = p == 0 ? theirs[s] : to[s] + theirs[s];
      }
    }
  }
}

}  // namespace ferry::internal
