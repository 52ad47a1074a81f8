// A client's sums: its tokens' rows of this node are summed once all outputs that it asked for are
// published, with them what mates further in have summed, and sent as there is room.
#include <algorithm>
#include <cstring>

#include "base/round_up.h"
#include "exchange/crossing.h"

namespace ferry::internal {

std::size_t Crossing::rows_bytes(int num_terms, const HomeFormat& format) const noexcept {
  return exact() ? num_terms * format.wire_bytes()
                 : format.hidden * element_bytes(sum_type(format.type));
}

std::size_t Crossing::scalars_at(int num_terms, const HomeFormat& format) const noexcept {
  return round_up(rows_bytes(num_terms, format), sizeof(float));
}

std::size_t Crossing::unit_bytes(int num_terms, int scalars,
                                 const HomeFormat& format) const noexcept {
  return round_up(scalars_at(num_terms, format) + num_terms * scalars * sizeof(float), kUnitAlign);
}

// True when it is done with.
bool Crossing::serve(Duty& duty) {
  const Ready state = ready(duty);
  if (state == Ready::kNo) return false;
  if (state == Ready::kYes) {
    const HomeFormat& format = duty.rows->format();
    if (!duty.out) {
      duty.sum = std::make_unique<Summands>(format.hidden, format.wire_bytes());
      duty.sums = std::make_unique<BranchSums>(format.hidden, sum_type(format.type), duty.tier);
      duty.out = std::make_unique<MessageStream>(mail(), duty.asker,
                                                 head(kSums, duty.number, duty.tier, duty.origin));
    }
    while (duty.at < duty.terms.size()) {
      if (!serve_unit(duty)) return false;
    }
    duty.out->flush();
    count_all(duty.asker, duty.out->bytes());
  }
  forget_sums(duty.number, duty.origin);
  return true;
}

// Never: a rank refused or ended the combine with an error, and the client knows it too. Asked
// again at each look: a mate further in may find out first, and never send its part.
Crossing::Ready Crossing::ready(const Duty& duty) const {
  for (const int rank : duty.ranks) {
    // Acquire: their rows and records are there. Partner: publish().
    const std::uint64_t seen = view_.control(rank).progress.load(std::memory_order_acquire);
    if (seen < progress_of(duty.number, Stage::kDelivered)) return Ready::kNo;
    const Record& theirs = view_.record(rank, duty.number);
    const bool fits = theirs.number == duty.number && theirs.status == Code::kOk &&
                      theirs.terms.kind == Kind::kCombine &&
                      theirs.terms.hidden == duty.ask.hidden &&
                      static_cast<std::int32_t>(theirs.terms.row_type) == duty.ask.row_type;
    if (!fits) return Ready::kNever;
  }
  return Ready::kYes;
}

// False: not all of it is here, or there is no room now.
bool Crossing::serve_unit(Duty& duty) {
  const HomeFormat& format = duty.rows->format();
  std::int64_t num_terms;
  std::memcpy(&num_terms, duty.terms.data() + duty.at, sizeof num_terms);
  const int count = static_cast<int>(num_terms);
  const std::size_t first = duty.at + sizeof num_terms;
  const Branches branches = branches_of(duty, first, count);
  if (!has_come(duty, branches)) return false;
  std::byte* out = duty.out->append(unit_bytes(count, duty.ask.scalars, format));
  if (out == nullptr) return false;
  count_rows(duty.asker, rows_bytes(count, format));
  for (int i = 0; i < branches.count(); ++i) {
    if (branches[i].way < 0 && !find_rows(duty, first, branches[i].items)) duty.rows->clear();
  }
  if (exact()) {
    ship(duty, branches, out);
  } else {
    add_up(duty, branches, out);
  }
  if (duty.ask.scalars > 0)
    put_scalars(duty, first, branches, reinterpret_cast<float*>(out + scalars_at(count, format)));
  for (int i = 0; i < branches.count(); ++i) {
    if (branches[i].way >= 0) duty.parts[branches[i].way].at += part_bytes(duty, branches[i]);
  }
  duty.at = first + num_terms * term_bytes(duty.ask.num_positions);
  return true;
}

std::size_t Crossing::part_bytes(const Duty& duty, const Branches::Branch& branch) const noexcept {
  return unit_bytes(static_cast<int>(branch.items.size()), duty.ask.scalars, duty.rows->format());
}

bool Crossing::has_come(const Duty& duty, const Branches& branches) const {
  for (int i = 0; i < branches.count(); ++i) {
    if (branches[i].way < 0) continue;
    const Part& part = duty.parts[branches[i].way];
    if (part.sums->filled < part.at + part_bytes(duty, branches[i])) return false;
  }
  return true;
}

// Of this node. False: they were not published.
bool Crossing::find_rows(Duty& duty, std::size_t first, std::span<const std::int64_t> items) const {
  const int num_positions = duty.ask.num_positions;
  duty.rows->clear();
  for (const std::int64_t item : items) {
    TermHead term;
    std::memcpy(&term, duty.terms.data() + first + item * term_bytes(num_positions), sizeof term);
    HomeRows::Row& row = duty.rows->add();
    row.owner = term.owner;
    row.weight = term.weight;
    row.num_parts = num_positions;
    for (int p = 0; p < num_positions; ++p) {
      const TermPlace place = place_of(duty, first, item, p);
      const Record& theirs = view_.record(place.rank, duty.number);
      if (place.row < 0 || place.row >= theirs.num_rows) return false;
      row.parts[p] = view_.window(place.rank) + theirs.published.rows_offset +
                     place.row * theirs.published.pitch_bytes;
      row.encoded = theirs.encoded;
    }
  }
  return true;
}

void Crossing::ship(Duty& duty, const Branches& branches, std::byte* out) const {
  const std::size_t row_bytes = duty.rows->format().wire_bytes();
  for (int i = 0; i < branches.count(); ++i) {
    const auto& [way, tier, items] = branches[i];
    for (std::size_t j = 0; j < items.size(); ++j) {
      std::byte* to = out + items[j] * row_bytes;
      if (way >= 0) {
        std::memcpy(to, duty.parts[way].sums->data() + duty.parts[way].at + j * row_bytes,
                    row_bytes);
      } else if (static_cast<int>(j) < duty.rows->count()) {
        duty.sum->clear();
        duty.rows->ship(static_cast<int>(j), *duty.sum, to);
      }
    }
  }
}

void Crossing::add_up(Duty& duty, const Branches& branches, std::byte* out) const {
  const DataType type = sum_type(duty.rows->format().type);
  duty.sum->clear();
  if (branches.count() == 1 && branches[0].way < 0) return duty.rows->add_up(*duty.sum, type, out);
  duty.sums->clear();
  for (int i = 0; i < branches.count(); ++i) {
    const auto& [way, tier, items] = branches[i];
    if (way < 0) duty.rows->add_up(*duty.sum, type, duty.sums->own());
    duty.sums->add(tier,
                   way < 0 ? duty.sums->own() : duty.parts[way].sums->data() + duty.parts[way].at);
  }
  duty.sums->sum(duty.tier - 1, out);
}

// The weights of each row, over all tensor-parallel positions.
void Crossing::put_scalars(const Duty& duty, std::size_t first, const Branches& branches,
                           float* out) const {
  const int scalars = duty.ask.scalars;
  for (int i = 0; i < branches.count(); ++i) {
    const auto& [way, tier, items] = branches[i];
    for (std::size_t j = 0; j < items.size(); ++j) {
      float* to = out + items[j] * scalars;
      if (way >= 0) {
        const Part& part = duty.parts[way];
        const std::size_t at = scalars_at(static_cast<int>(items.size()), duty.rows->format()) +
                               j * scalars * sizeof *to;
        std::memcpy(to, part.sums->data() + part.at + at, scalars * sizeof *to);
        continue;
      }
      for (int p = 0; p < duty.ask.num_positions && duty.rows->count() > 0; ++p) {
        const TermPlace place = place_of(duty, first, items[j], p);
        const auto* theirs = reinterpret_cast<const float*>(
                                 view_.window(place.rank) +
                                 view_.record(place.rank, duty.number).published.weights_offset) +
                             static_cast<std::int64_t>(place.row) * scalars;
        for (int s = 0; s < scalars; ++s) to[s] = p == 0 ? theirs[s] : to[s] + theirs[s];
      }
    }
  }
}

}  // namespace ferry::internal
