// Message layout: the bytes of the messages that an exchange sends between nodes. Each part has one
// writer and one reader here, and no other code knows the offsets of its fields. A reader takes any
// bytes, checks them against the sizes of this exchange, and refuses those that do not fit.
//   record   RankFlags | Record | count row         rows   a RowUnit for each row
//   flags    RankFlags                              request  SumFormat | a SumUnit for each token
// ReplyLayout has the layout of the sums that reply to a request; they have the order of the
// request.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "base/limits.h"
#include "exchange/setup/record.h"
#include "memory/window_layout.h"

namespace ferry::internal {

enum MessageKind : std::uint8_t { kRecord, kFlags, kRows, kSumRequest, kSumReply };

// The flags of a rank.
struct RankFlags {
  std::uint64_t progress = 0, read_through = 0, set_since = 0;
  Code growth = Code::kOk;  // valid in a dispatch, from kGrown on
};
std::vector<std::byte> write_flags(const RankFlags& flags);
bool read_flags(std::span<const std::byte> body, RankFlags& flags);

// `counts`: the row of the count matrix (count_row.h), if the operation has one.
struct RecordMessage {
  RankFlags flags;
  Record record;
  std::span<const std::byte> counts;
};
std::vector<std::byte> write_record(const RecordMessage& message);
bool read_record(std::span<const std::byte> body, const WindowLayout& layout,
                 RecordMessage& message);

// One place to which a row goes. The layout decides whether `weights` and `ids` are used.
struct Destination {
  std::int32_t rank = 0, row = 0, section_rows = 0;
  std::int32_t source[3] = {};
  std::array<float, kMaxTopK> weights = {};
  std::array<std::int32_t, kMaxTopK> ids = {};
};

// A row of a dispatch with its destinations: in a message, all those in one subtree.
struct RowUnit {
  enum : std::int32_t {
    kStreaming = 1,   // the mate stores the row with streaming stores
    kEverywhere = 2,  // sent to every node, needed or not (kAllgather)
  };
  static constexpr int kMostDestinations = kMaxEntries * kMaxTpSize;

  std::int32_t flags = 0;
  int num_destinations = 0;
  std::span<const std::byte> destinations = {};  // of append_destination()
  std::span<const std::byte> row = {}, scales = {};
};
void append_destination(const WindowLayout& layout, const Destination& destination,
                        std::vector<std::byte>& destinations);
// False: this exchange has no such rank or row.
bool read_destination(const WindowLayout& layout, int num_ranks, const RowUnit& unit, int index,
                      Destination& destination);
std::size_t row_unit_bytes(const WindowLayout& layout, int num_destinations) noexcept;
// Writes the unit with some of its destinations, into exactly row_unit_bytes().
void write_row_unit(const WindowLayout& layout, const RowUnit& unit,
                    std::span<const std::int64_t> destinations, std::span<std::byte> out);
// Reads the unit at the beginning of `body`, as views of `body`. Returns its bytes; 0: there is no
// valid unit.
std::size_t read_row_unit(const WindowLayout& layout, std::span<const std::byte> body,
                          RowUnit& unit);

// The format of the rows and sums of a combine.
struct SumFormat {
  std::int64_t hidden = 0;
  DataType row_type = DataType::kBf16;
  Partials partials = Partials::kNone;
  bool weighted = false;
  int tp_size = 1;
  int scalars = 0;  // floats of each row that return with the sums
};
void append_format(const SumFormat& format, std::vector<std::byte>& out);
// `most_row_bytes`: the limit for an output row of this exchange.
bool read_format(ByteReader& reader, std::int64_t most_row_bytes, SumFormat& format);

// One row of a sum, and its place at each tensor-parallel rank.
struct Summand {
  struct Place {
    std::int32_t rank = 0, row = 0;
  };
  std::int32_t owner = 0;
  float weight = 1.0f;
  std::array<Place, kMaxTpSize> places = {};
};

// The summands of one token: in a message, all those in one subtree. The reply has one sum of them,
// or all rows (kExact).
struct SumUnit {
  int tp_size = 1;
  int num_summands = 0;
  std::span<const std::byte> terms = {};  // of append_summand()

  Summand operator[](std::int64_t index) const;
  // The rank of the first place of a summand.
  std::int32_t rank_of(std::int64_t index) const noexcept;
};
std::size_t summand_bytes(int tp_size) noexcept;
void append_summand(const Summand& term, int tp_size, std::vector<std::byte>& terms);
// Appends the unit with some of its summands.
void append_sum_unit(const SumUnit& unit, std::span<const std::int64_t> terms,
                     std::vector<std::byte>& out);
// False: there is no valid unit of 1 to kMaxEntries summands.
bool read_sum_unit(ByteReader& reader, int tp_size, SumUnit& unit);

// The contents of a message, by its kind. Spans refer to its body.
struct RowUnits {
  std::span<const std::byte> units;
};
struct SumRequestMessage {
  SumFormat format;
  std::span<const std::byte> units;
};
struct SumReply {
  std::span<const std::byte> bytes;
};
using ExchangeMessage =
    std::variant<std::monostate, RecordMessage, RankFlags, RowUnits, SumRequestMessage, SumReply>;
// monostate: the bytes are not a message of this exchange. Units are checked when they are read.
ExchangeMessage read_message(std::uint8_t kind, std::span<const std::byte> body,
                             const WindowLayout& layout, std::int64_t most_row_bytes);

// The reply to a SumUnit of `num_summands`: its rows or their sum, then the scalars of each row.
struct ReplyLayout {
  std::size_t row_bytes = 0;  // bytes of a row (exact) or of a sum
  bool exact = false;
  int scalars = 0;

  std::size_t rows_bytes(int num_summands) const noexcept {
    return exact ? num_summands * row_bytes : row_bytes;
  }
  std::size_t scalars_at(int num_summands) const noexcept;
  std::size_t bytes(int num_summands) const noexcept;
};

}  // namespace ferry::internal
