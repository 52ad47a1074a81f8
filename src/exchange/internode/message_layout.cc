#include "exchange/internode/message_layout.h"

#include <algorithm>

#include "base/round_up.h"
#include "exchange/internode/count_row.h"

namespace ferry::internal {

namespace {

// Row units, the rows in them, and replies to sum units begin at multiples of this.
constexpr std::size_t kUnitAlign = 16;

constexpr std::size_t kFlagsBytes = 3 * sizeof(std::uint64_t) + sizeof(Code);
constexpr std::size_t kUnitHeadBytes = 2 * sizeof(std::int32_t);
// The offset of the places from the start of a summand: its owner and its weight come first.
constexpr std::size_t kPlacesAt = sizeof(std::int32_t) + sizeof(float);

// Makes `out` longer by `bytes`, and returns a writer for them.
ByteWriter extend(std::vector<std::byte>& out, std::size_t bytes) {
  const std::size_t begin = out.size();
  out.resize(begin + bytes);
  return ByteWriter(std::span(out).subspan(begin));
}

void put_flags(const RankFlags& flags, std::vector<std::byte>& out) {
  append(out, flags.progress);
  append(out, flags.read_through);
  append(out, flags.set_since);
  append(out, flags.growth);
}

RankFlags get_flags(ByteReader& reader) {
  RankFlags flags;
  flags.progress = reader.get<std::uint64_t>();
  flags.read_through = reader.get<std::uint64_t>();
  flags.set_since = reader.get<std::uint64_t>();
  flags.growth = reader.get<Code>();
  return flags;
}

std::size_t destination_bytes(const WindowLayout& layout) noexcept {
  return 6 * sizeof(std::int32_t) + layout.weights_per_row() * sizeof(float) +
         layout.ids_per_row() * sizeof(std::int32_t);
}

// The offset of the row from the start of a unit.
std::size_t row_at(const WindowLayout& layout, int num_destinations) noexcept {
  return round_up(kUnitHeadBytes + num_destinations * destination_bytes(layout), kUnitAlign);
}

// Reads an enumeration with the values 0 to `last`, stored as `Stored`.
template <typename Stored, typename Enum>
bool get_enum(ByteReader& reader, Enum last, Enum& value) {
  const auto number = reader.get<Stored>();
  value = static_cast<Enum>(number);
  return number >= 0 && number <= static_cast<Stored>(last);
}

}  // namespace

std::vector<std::byte> write_flags(const RankFlags& flags) {
  std::vector<std::byte> body;
  put_flags(flags, body);
  return body;
}

bool read_flags(std::span<const std::byte> body, RankFlags& flags) {
  ByteReader reader(body);
  flags = get_flags(reader);
  return reader.done();
}

std::vector<std::byte> write_record(const RecordMessage& message) {
  std::vector<std::byte> body;
  body.reserve(kFlagsBytes + sizeof message.record + message.counts.size());
  put_flags(message.flags, body);
  append(body, message.record);
  append(body, message.counts);
  return body;
}

bool read_record(std::span<const std::byte> body, const WindowLayout& layout,
                 RecordMessage& message) {
  ByteReader reader(body);
  message.flags = get_flags(reader);
  message.record = reader.get<Record>();
  message.record.reason[sizeof message.record.reason - 1] = 0;  // ends the text in any case
  message.counts = reader.rest();
  return reader.ok() && are_counts(message.counts, layout.count_row_bytes() / sizeof(std::int32_t));
}

void append_destination(const WindowLayout& layout, const Destination& destination,
                        std::vector<std::byte>& destinations) {
  ByteWriter writer = extend(destinations, destination_bytes(layout));
  writer.put(destination.rank);
  writer.put(destination.row);
  writer.put(destination.section_rows);
  writer.put_bytes(bytes_of(destination.source));
  writer.put_bytes(bytes_of(std::span(destination.weights).first(layout.weights_per_row())));
  writer.put_bytes(bytes_of(std::span(destination.ids).first(layout.ids_per_row())));
}

bool read_destination(const WindowLayout& layout, int num_ranks, const RowUnit& unit, int index,
                      Destination& destination) {
  const std::size_t bytes = destination_bytes(layout);
  ByteReader reader(unit.destinations.subspan(index * bytes, bytes));
  destination.rank = reader.get<std::int32_t>();
  destination.row = reader.get<std::int32_t>();
  destination.section_rows = reader.get<std::int32_t>();
  reader.get_all(std::span(destination.source));
  reader.get_all(std::span(destination.weights).first(layout.weights_per_row()));
  reader.get_all(std::span(destination.ids).first(layout.ids_per_row()));
  return reader.done() && destination.rank >= 0 && destination.rank < num_ranks &&
         destination.row >= 0 && destination.row < layout.max_rows() &&
         destination.section_rows >= 0 && destination.section_rows <= layout.max_section_rows();
}

std::size_t row_unit_bytes(const WindowLayout& layout, int num_destinations) noexcept {
  return row_at(layout, num_destinations) +
         round_up(layout.row_bytes() + layout.scale_bytes(), kUnitAlign);
}

void write_row_unit(const WindowLayout& layout, const RowUnit& unit,
                    std::span<const std::int64_t> destinations, std::span<std::byte> out) {
  const auto count = static_cast<std::int32_t>(destinations.size());
  const std::size_t bytes = destination_bytes(layout);
  ByteWriter writer(out);
  writer.put(count);
  writer.put(unit.flags);
  for (const std::int64_t index : destinations)
    writer.put_bytes(unit.destinations.subspan(index * bytes, bytes));
  writer.put_zeros(row_at(layout, count) - writer.written());
  writer.put_bytes(unit.row);
  writer.put_bytes(unit.scales);
  writer.put_zeros(writer.remaining());
}

std::size_t read_row_unit(const WindowLayout& layout, std::span<const std::byte> body,
                          RowUnit& unit) {
  ByteReader reader(body);
  unit.num_destinations = reader.get<std::int32_t>();
  unit.flags = reader.get<std::int32_t>();
  if (unit.num_destinations < 0 || unit.num_destinations > RowUnit::kMostDestinations) return 0;
  const std::size_t size = row_unit_bytes(layout, unit.num_destinations);
  unit.destinations = reader.take(unit.num_destinations * destination_bytes(layout));
  reader.take(row_at(layout, unit.num_destinations) - kUnitHeadBytes - unit.destinations.size());
  unit.row = reader.take(layout.row_bytes());
  unit.scales = reader.take(layout.scale_bytes());
  return reader.ok() && size <= body.size() ? size : 0;
}

void append_format(const SumFormat& format, std::vector<std::byte>& out) {
  append(out, format.hidden);
  append(out, static_cast<std::int32_t>(format.row_type));
  append(out, static_cast<std::int32_t>(format.partials));
  append(out, static_cast<std::int32_t>(format.weighted));
  append(out, format.tp_size);
  append(out, format.scalars);
}

bool read_format(ByteReader& reader, std::int64_t most_row_bytes, SumFormat& format) {
  format.hidden = reader.get<std::int64_t>();
  const bool row_type = get_enum<std::int32_t>(reader, DataType::kBytes, format.row_type);
  const bool partials = get_enum<std::int32_t>(reader, Partials::kPerRank, format.partials);
  format.weighted = reader.get<std::int32_t>() != 0;
  format.tp_size = reader.get<std::int32_t>();
  format.scalars = reader.get<std::int32_t>();
  return reader.ok() && row_type && partials && format.hidden >= 1 &&
         format.hidden <= most_row_bytes && format.tp_size >= 1 && format.tp_size <= kMaxTpSize &&
         format.scalars >= 0 && format.scalars <= kMaxEntries;
}

std::size_t summand_bytes(int tp_size) noexcept {
  return kPlacesAt + tp_size * sizeof(Summand::Place);
}

Summand SumUnit::operator[](std::int64_t index) const {
  const std::size_t bytes = summand_bytes(tp_size);
  ByteReader reader(terms.subspan(index * bytes, bytes));
  Summand term;
  term.owner = reader.get<std::int32_t>();
  term.weight = reader.get<float>();
  reader.get_all(std::span(term.places).first(tp_size));
  return term;
}

std::int32_t SumUnit::rank_of(std::int64_t index) const noexcept {
  ByteReader reader(terms.subspan(index * summand_bytes(tp_size) + kPlacesAt));
  return reader.get<Summand::Place>().rank;
}

void append_summand(const Summand& term, int tp_size, std::vector<std::byte>& terms) {
  ByteWriter writer = extend(terms, summand_bytes(tp_size));
  writer.put(term.owner);
  writer.put(term.weight);
  writer.put_bytes(bytes_of(std::span(term.places).first(tp_size)));
}

void append_sum_unit(const SumUnit& unit, std::span<const std::int64_t> terms,
                     std::vector<std::byte>& out) {
  const std::size_t bytes = summand_bytes(unit.tp_size);
  ByteWriter writer = extend(out, sizeof(std::int64_t) + terms.size() * bytes);
  writer.put(static_cast<std::int64_t>(terms.size()));
  for (const std::int64_t index : terms) writer.put_bytes(unit.terms.subspan(index * bytes, bytes));
}

bool read_sum_unit(ByteReader& reader, int tp_size, SumUnit& unit) {
  const auto num_summands = reader.get<std::int64_t>();
  if (num_summands < 1 || num_summands > kMaxEntries) return false;
  unit.tp_size = tp_size;
  unit.num_summands = static_cast<int>(num_summands);
  unit.terms = reader.take(num_summands * summand_bytes(tp_size));
  return reader.ok();
}

ExchangeMessage read_message(std::uint8_t kind, std::span<const std::byte> body,
                             const WindowLayout& layout, std::int64_t most_row_bytes) {
  RecordMessage record;
  RankFlags flags;
  SumRequestMessage ask;
  ByteReader reader(body);
  switch (kind) {
    case kRecord:
      if (read_record(body, layout, record)) return record;
      break;
    case kFlags:
      if (read_flags(body, flags)) return flags;
      break;
    case kRows: return RowUnits{body};
    case kSumRequest:
      if (!read_format(reader, most_row_bytes, ask.format)) break;
      ask.units = reader.rest();
      return ask;
    case kSumReply: return SumReply{body};
    default: break;
  }
  return {};
}

std::size_t ReplyLayout::scalars_at(int num_summands) const noexcept {
  return round_up(rows_bytes(num_summands), sizeof(float));
}

std::size_t ReplyLayout::bytes(int num_summands) const noexcept {
  return round_up(scalars_at(num_summands) + num_summands * scalars * sizeof(float), kUnitAlign);
}

}  // namespace ferry::internal
