// The bytes of messages between nodes: written values are read again, and truncated or forged bytes
// are refused or name only valid places.
#include "exchange/internode/message_layout.h"

#include <gmock/gmock.h>

#include <bit>
#include <limits>

#include "exchange/internode/count_row.h"
#include "exchange/setup/setup.h"

namespace ferry::internal {
namespace {

using testing::ElementsAre;
using Bytes = std::vector<std::byte>;

constexpr int kRanks = 6;

WindowLayout layout_of(Layout kind) {
  ExchangeConfig config{.max_tokens = 8, .hidden = 5, .num_experts = 12, .top_k = 3};
  config.layout = kind;
  config.max_output_row_bytes = 20;
  config.expert_capacity = 16;
  std::vector<int> members{0, 1, 2, 3, 4, 5};
  const ExpertMap map(config, kRanks, members);
  const std::vector<int> nodes{0, 0, 1, 1, 2, 2};
  WindowShape shape = window_shape(config, map, {config, map, nodes});
  shape.scale_bytes = 8;
  return {config, shape};
}

Bytes some_bytes(std::size_t count, int first) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(first + i);
  return bytes;
}

// All bytes but the last ones are no message, for each number of them.
template <typename Read>
void expect_refused_when_cut(const Bytes& whole, const Read& read) {
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(read(std::span(whole).first(size))) << size << " of " << whole.size();
}

TEST(MessageLayout, FlagsComeBack) {
  const Bytes body =
      write_flags({.progress = 41, .read_through = 7, .set_since = 5, .growth = Code::kCapacity});
  RankFlags flags;
  ASSERT_TRUE(read_flags(body, flags));
  EXPECT_EQ(flags.progress, 41u);
  EXPECT_EQ(flags.read_through, 7u);
  EXPECT_EQ(flags.set_since, 5u);
  EXPECT_EQ(flags.growth, Code::kCapacity);
  expect_refused_when_cut(body, [&](auto bytes) { return read_flags(bytes, flags); });
  Bytes longer = body;
  longer.push_back({});
  EXPECT_FALSE(read_flags(longer, flags));
}

TEST(MessageLayout, RecordComesBackWithItsCounts) {
  const WindowLayout layout = layout_of(Layout::kExpertMajor);
  RecordMessage sent;
  sent.flags.progress = 12;
  sent.record.number = 3;
  sent.record.num_rows = 77;
  std::fill_n(sent.record.reason, sizeof sent.record.reason, 'x');
  std::vector<std::int32_t> row(layout.count_row_bytes() / sizeof(std::int32_t));
  row[3] = 5;
  Bytes counts;
  append_counts(row, counts);
  sent.counts = counts;
  Bytes body = write_record(sent);
  RecordMessage got;
  ASSERT_TRUE(read_record(body, layout, got));
  EXPECT_EQ(got.flags.progress, 12u);
  EXPECT_EQ(got.record.number, 3u);
  EXPECT_EQ(got.record.num_rows, 77);
  EXPECT_EQ(std::string(got.record.reason).size(), sizeof got.record.reason - 1);  // it ends
  EXPECT_TRUE(std::ranges::equal(got.counts, counts));
  body.resize(body.size() - counts.size());
  ASSERT_TRUE(read_record(body, layout, got));
  EXPECT_TRUE(got.counts.empty());
  expect_refused_when_cut(body, [&](auto bytes) { return read_record(bytes, layout, got); });
  row.resize(row.size() + 1, 1);
  Bytes too_many;
  append_counts(row, too_many);
  sent.counts = too_many;
  EXPECT_FALSE(read_record(write_record(sent), layout, got));
}

TEST(MessageLayout, CountsComeBack) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  for (const std::vector<std::int32_t>& row :
       {std::vector<std::int32_t>(300), {1}, {0, 127, 0, 128, 16384}, {kMost, 0, kMost}, {}}) {
    Bytes bytes;
    append_counts(row, bytes);
    ASSERT_TRUE(are_counts(bytes, row.size()));
    std::vector<std::int32_t> got(row.size(), -1);
    read_counts(bytes, got);
    EXPECT_EQ(got, row);
  }
}

// 16 tokens with 8 experts each, of 4,096: each rank sends its row to every node.
TEST(MessageLayout, BytesOfCountsFollowTheTokensAndNotTheExperts) {
  std::vector<std::int32_t> row(4096);
  for (std::size_t i = 0; i < 128; ++i) row[i * 31] = 1;
  Bytes bytes;
  append_counts(row, bytes);
  EXPECT_LE(bytes.size(), 256U);
}

TEST(MessageLayout, BytesThatAreNoCountsAreRefused) {
  const auto are = [](std::vector<int> values, std::size_t size) {
    Bytes bytes;
    for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
    return are_counts(bytes, size);
  };
  EXPECT_TRUE(are({2, 1}, 3));
  EXPECT_FALSE(are({3, 1}, 3)) << "beyond the end";
  EXPECT_FALSE(are({0, 1, 0, 1, 0, 1, 0, 1}, 3)) << "more than there are";
  EXPECT_FALSE(are({0, 0}, 3)) << "a zero";
  EXPECT_FALSE(are({0}, 3)) << "no count";
  EXPECT_FALSE(are({0, 0x80}, 3)) << "cut";
  EXPECT_FALSE(are({0, 0xff, 0xff, 0xff, 0xff, 0x0f}, 3)) << "more than an int32 holds";
  EXPECT_FALSE(are({0, 0x81, 0x80, 0x80, 0x80, 0x80, 0}, 3)) << "too long";
}

class RowUnits : public testing::TestWithParam<Layout> {
 protected:
  const WindowLayout layout_ = layout_of(GetParam());
  const Bytes row_ = some_bytes(layout_.row_bytes(), 50);
  const Bytes scales_ = some_bytes(layout_.scale_bytes(), 90);

  Bytes write(std::span<const Destination> destinations, std::int32_t flags,
              std::span<const std::int64_t> chosen) const {
    Bytes written;
    for (const Destination& to : destinations) append_destination(layout_, to, written);
    const RowUnit unit{flags, static_cast<int>(destinations.size()), written, row_, scales_};
    Bytes out(row_unit_bytes(layout_, static_cast<int>(chosen.size())), std::byte{0xee});
    write_row_unit(layout_, unit, chosen, out);
    return out;
  }
  bool reads(Destination to) const {
    const Bytes body = write({&to, 1}, 0, std::vector<std::int64_t>{0});
    RowUnit unit;
    EXPECT_EQ(read_row_unit(layout_, body, unit), body.size());
    Destination got;
    return read_destination(layout_, kRanks, unit, 0, got);
  }
};

TEST_P(RowUnits, ComeBackWithTheDestinationsThatWereChosen) {
  std::vector<Destination> sent;
  for (int i = 0; i < 4; ++i) {
    Destination& to = sent.emplace_back(
        Destination{.rank = i, .row = 2 * i, .section_rows = 3, .source = {i, i + 1, i + 2}});
    to.weights.fill(static_cast<float>(i) + 0.5F);
    to.ids.fill(i - 1);
  }
  Bytes body = write(sent, RowUnit::kStreaming, std::vector<std::int64_t>{1, 3});
  const std::size_t size = body.size();
  body.resize(size + 7);  // something follows
  RowUnit unit;
  ASSERT_EQ(read_row_unit(layout_, body, unit), size);
  EXPECT_EQ(size % 16, 0u);
  EXPECT_EQ(unit.num_destinations, 2);
  EXPECT_EQ(unit.flags, RowUnit::kStreaming);
  EXPECT_TRUE(std::ranges::equal(unit.row, row_));
  EXPECT_TRUE(std::ranges::equal(unit.scales, scales_));
  Destination got;
  ASSERT_TRUE(read_destination(layout_, kRanks, unit, 1, got));
  EXPECT_EQ(got.rank, 3);
  EXPECT_EQ(got.row, 6);
  EXPECT_EQ(got.section_rows, 3);
  EXPECT_THAT(got.source, ElementsAre(3, 4, 5));
  for (std::size_t i = 0; i < layout_.weights_per_row(); ++i) EXPECT_EQ(got.weights[i], 3.5F);
  for (std::size_t i = 0; i < layout_.ids_per_row(); ++i) EXPECT_EQ(got.ids[i], 2);
  body.resize(size);
  expect_refused_when_cut(body,
                          [&](auto bytes) { return read_row_unit(layout_, bytes, unit) > 0; });
}

TEST_P(RowUnits, WithoutDestinationsComeBackToo) {
  const Bytes body = write({}, RowUnit::kEverywhere, {});
  RowUnit unit;
  EXPECT_EQ(read_row_unit(layout_, body, unit), body.size());
  EXPECT_EQ(unit.num_destinations, 0);
  EXPECT_EQ(unit.flags, RowUnit::kEverywhere);
}

TEST_P(RowUnits, OfNumbersOutsideAreRefused) {
  const auto rows = static_cast<std::int32_t>(layout_.max_rows());
  const auto sections = static_cast<std::int32_t>(layout_.max_section_rows());
  EXPECT_TRUE(reads({.rank = kRanks - 1, .row = rows - 1, .section_rows = sections}));
  EXPECT_FALSE(reads({.rank = kRanks}));
  EXPECT_FALSE(reads({.rank = -1}));
  EXPECT_FALSE(reads({.row = rows}));
  EXPECT_FALSE(reads({.row = -1}));
  EXPECT_FALSE(reads({.section_rows = sections + 1}));
  EXPECT_FALSE(reads({.section_rows = -1}));
  Bytes body = write({}, 0, {});
  for (const std::int32_t count : {-1, RowUnit::kMostDestinations + 1, 0x7fffffff}) {
    std::ranges::copy(bytes_of(count), body.begin());
    RowUnit unit;
    EXPECT_EQ(read_row_unit(layout_, body, unit), 0u) << count;
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, RowUnits,
                         testing::Values(Layout::kExpertMajor, Layout::kRankMajor,
                                         Layout::kPadded));

TEST(MessageLayout, FormatOfSumsComesBack) {
  const SumFormat sent{.hidden = 9,
                       .row_type = DataType::kFp16,
                       .partials = Partials::kPerRank,
                       .weighted = true,
                       .tp_size = 2,
                       .scalars = 4};
  Bytes body;
  append_format(sent, body);
  ByteReader reader(body);
  SumFormat got;
  ASSERT_TRUE(read_format(reader, 9, got));
  EXPECT_TRUE(reader.done());
  EXPECT_EQ(got.hidden, 9);
  EXPECT_EQ(got.row_type, DataType::kFp16);
  EXPECT_EQ(got.partials, Partials::kPerRank);
  EXPECT_TRUE(got.weighted);
  EXPECT_EQ(got.tp_size, 2);
  EXPECT_EQ(got.scalars, 4);
  expect_refused_when_cut(body, [&](auto bytes) {
    ByteReader cut(bytes);
    return read_format(cut, 9, got);
  });
}

TEST(MessageLayout, FormatOfSumsOutsideItsLimitsIsRefused) {
  const auto reads = [](const SumFormat& format) {
    Bytes body;
    append_format(format, body);
    ByteReader reader(body);
    SumFormat got;
    return read_format(reader, 100, got);
  };
  EXPECT_TRUE(reads({.hidden = 100, .tp_size = kMaxTpSize, .scalars = kMaxEntries}));
  EXPECT_FALSE(reads({.hidden = 101}));
  EXPECT_FALSE(reads({.hidden = 0}));
  EXPECT_FALSE(reads({.hidden = 1, .row_type = static_cast<DataType>(200)}));
  EXPECT_FALSE(reads({.hidden = 1, .partials = static_cast<Partials>(2)}));
  EXPECT_FALSE(reads({.hidden = 1, .tp_size = 0}));
  EXPECT_FALSE(reads({.hidden = 1, .tp_size = kMaxTpSize + 1}));
  EXPECT_FALSE(reads({.hidden = 1, .scalars = -1}));
  EXPECT_FALSE(reads({.hidden = 1, .scalars = kMaxEntries + 1}));
}

TEST(MessageLayout, TermsComeBackAsChosen) {
  Bytes terms;
  for (int i = 0; i < 3; ++i) {
    Summand term{.owner = i, .weight = 0.25F * static_cast<float>(i)};
    term.places[0] = {10 + i, 20 + i};
    term.places[1] = {30 + i, 40 + i};
    append_summand(term, 2, terms);
  }
  EXPECT_EQ(terms.size(), 3 * summand_bytes(2));
  Bytes body;
  append_sum_unit({2, 3, terms}, std::vector<std::int64_t>{0, 2}, body);
  ByteReader reader(body);
  SumUnit got;
  ASSERT_TRUE(read_sum_unit(reader, 2, got));
  EXPECT_TRUE(reader.done());
  ASSERT_EQ(got.num_summands, 2);
  EXPECT_EQ(got[1].owner, 2);
  EXPECT_EQ(got[1].weight, 0.5F);
  EXPECT_EQ(got[1].places[0].rank, 12);
  EXPECT_EQ(got[1].places[1].row, 42);
  expect_refused_when_cut(body, [&](auto bytes) {
    ByteReader cut(bytes);
    return read_sum_unit(cut, 2, got);
  });
}

TEST(MessageLayout, UnitsOfTooManyTermsAreRefused) {
  Bytes body(sizeof(std::int64_t) + (kMaxEntries + 1) * summand_bytes(1));
  const auto reads = [&body](std::int64_t num_summands) {
    std::ranges::copy(bytes_of(num_summands), body.begin());
    ByteReader reader(body);
    SumUnit unit;
    return read_sum_unit(reader, 1, unit);
  };
  EXPECT_TRUE(reads(1));
  EXPECT_TRUE(reads(kMaxEntries));
  EXPECT_FALSE(reads(kMaxEntries + 1));
  EXPECT_FALSE(reads(0));
  EXPECT_FALSE(reads(-1));
  EXPECT_FALSE(reads(std::int64_t{1} << 62));  // its bytes overflow
}

TEST(MessageLayout, AnswersHoldRowsThenScalars) {
  const ReplyLayout sums{.row_bytes = 10, .exact = false, .scalars = 3};
  EXPECT_EQ(sums.rows_bytes(4), 10u);
  EXPECT_EQ(sums.scalars_at(4), 12u);
  EXPECT_EQ(sums.bytes(4), 64u);
  const ReplyLayout rows{.row_bytes = 10, .exact = true, .scalars = 0};
  EXPECT_EQ(rows.rows_bytes(4), 40u);
  EXPECT_EQ(rows.bytes(4), 48u);
}

}  // namespace
}  // namespace ferry::internal
