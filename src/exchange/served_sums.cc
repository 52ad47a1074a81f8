// A client's sums: it asks for its tokens' rows of this node, which are summed once all outputs
// here are published, and sent as there is room. Everything in a message is looked at before it is
// believed.
#include <algorithm>
#include <cstring>

#include "base/round_up.h"
#include "exchange/crossing.h"

namespace ferry::internal {

namespace {

template <typename T>
T value_at(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

std::size_t term_bytes(int num_positions) {
  return sizeof(TermHead) + num_positions * sizeof(TermPlace);
}

}  // namespace

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

void Crossing::read_ask(int from, std::uint64_t number, std::span<const std::byte> body) {
  if (body.size() < sizeof(Ask)) return;
  const Ask ask = value_at<Ask>(body.data());
  const bool sane = ask.num_positions >= 1 && ask.num_positions <= kMaxPositions &&
                    ask.hidden >= 1 && ask.scalars >= 0 && ask.scalars <= kMaxEntries;
  if (!sane) return;
  const std::span<const std::byte> terms = body.subspan(sizeof ask);
  duties_[from].push_back({.number = number, .ask = ask, .terms = {terms.begin(), terms.end()}});
}

// True when it is done with.
bool Crossing::serve(int client, Duty& duty) {
  if (!duty.out) {
    const Ask& ask = duty.ask;
    const HomeFormat format{.wire = combine_wire_,
                            .type = static_cast<DataType>(ask.row_type),
                            .hidden = ask.hidden,
                            .partials = static_cast<Partials>(ask.partials),
                            .weighted = ask.weighted != 0};
    find_ranks(duty);
    duty.rows = std::make_unique<HomeRows>(format);
    duty.sum = std::make_unique<Summands>(format.hidden, format.wire_bytes());
    duty.out = std::make_unique<MessageStream>(mail(), client, head(kSums, duty.number));
  }
  const Ready state = ready(duty);
  if (state != Ready::kYes) return state == Ready::kNever;
  while (duty.at < duty.terms.size()) {
    if (!serve_unit(duty)) return false;
  }
  duty.out->flush();
  count_bytes(0, duty.out->bytes());
  return true;
}

// The ranks of this node whose rows are asked for.
void Crossing::find_ranks(Duty& duty) const {
  const std::size_t term = term_bytes(duty.ask.num_positions);
  std::vector<bool> asked(view_.nodes->num_ranks());
  std::size_t at = 0;
  while (at + sizeof(std::int64_t) <= duty.terms.size()) {
    const auto num_terms = value_at<std::int64_t>(duty.terms.data() + at);
    at += sizeof num_terms;
    const bool whole =
        num_terms >= 1 && num_terms <= kMaxEntries && num_terms * term <= duty.terms.size() - at;
    if (!whole) return duty.terms.clear();
    for (std::int64_t i = 0; i < num_terms; ++i, at += term) {
      for (int p = 0; p < duty.ask.num_positions; ++p) {
        const auto place =
            value_at<TermPlace>(duty.terms.data() + at + sizeof(TermHead) + p * sizeof(TermPlace));
        if (place.rank < 0 || place.rank >= view_.nodes->num_ranks() ||
            !view_.nodes->here(place.rank))
          return duty.terms.clear();
        asked[place.rank] = true;
      }
    }
  }
  for (const int rank : view_.nodes->ranks_here()) {
    if (asked[rank]) duty.ranks.push_back(rank);
  }
}

// Never: a rank refused or ended the combine with an error, and the client knows it too.
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

// False: there is no room now.
bool Crossing::serve_unit(Duty& duty) {
  const HomeFormat& format = duty.rows->format();
  const auto num_terms = static_cast<int>(value_at<std::int64_t>(duty.terms.data() + duty.at));
  const std::size_t first = duty.at + sizeof(std::int64_t);
  std::byte* out = duty.out->append(unit_bytes(num_terms, duty.ask.scalars, format));
  if (out == nullptr) return false;
  duty.at = first + num_terms * term_bytes(duty.ask.num_positions);
  count_bytes(rows_bytes(num_terms, format), 0);
  duty.sum->clear();
  if (!find_unit(duty, num_terms, first)) return true;
  if (exact()) {
    for (int i = 0; i < num_terms; ++i) {
      duty.sum->clear();
      duty.rows->ship(i, *duty.sum, out + i * format.wire_bytes());
    }
  } else {
    duty.rows->add_up(*duty.sum, sum_type(format.type), out);
  }
  if (duty.ask.scalars > 0)
    put_scalars(duty, first, reinterpret_cast<float*>(out + scalars_at(num_terms, format)));
  return true;
}

// False: it names rows that were not published.
bool Crossing::find_unit(Duty& duty, int num_terms, std::size_t at) const {
  const int num_positions = duty.ask.num_positions;
  duty.rows->clear();
  for (int i = 0; i < num_terms; ++i) {
    const auto term = value_at<TermHead>(duty.terms.data() + at);
    HomeRows::Row& row = duty.rows->add();
    row.owner = term.owner;
    row.weight = term.weight;
    row.num_parts = num_positions;
    at += sizeof term;
    for (int p = 0; p < num_positions; ++p, at += sizeof(TermPlace)) {
      const auto place = value_at<TermPlace>(duty.terms.data() + at);
      const Record& theirs = view_.record(place.rank, duty.number);
      if (place.row < 0 || place.row >= theirs.num_rows) return false;
      row.parts[p] = view_.window(place.rank) + theirs.published.rows_offset +
                     place.row * theirs.published.pitch_bytes;
      row.encoded = theirs.encoded;
    }
  }
  return true;
}

// The weights of each row, over all tensor-parallel positions.
void Crossing::put_scalars(const Duty& duty, std::size_t at, float* out) const {
  const int scalars = duty.ask.scalars;
  for (int i = 0; i < duty.rows->count(); ++i, out += scalars) {
    at += sizeof(TermHead);
    for (int p = 0; p < duty.ask.num_positions; ++p, at += sizeof(TermPlace)) {
      const auto place = value_at<TermPlace>(duty.terms.data() + at);
      const auto* theirs = reinterpret_cast<const float*>(
                               view_.window(place.rank) +
                               view_.record(place.rank, duty.number).published.weights_offset) +
                           static_cast<std::int64_t>(place.row) * scalars;
      for (int j = 0; j < scalars; ++j) out[j] = p == 0 ? theirs[j] : out[j] + theirs[j];
    }
  }
}

}  // namespace ferry::internal
