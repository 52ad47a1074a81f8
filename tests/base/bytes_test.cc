// Encodings made by hand: written values are read again, and nothing is read or written past an
// end.
#include "base/bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>

namespace ferry::internal {
namespace {

struct Record {
  std::int32_t rank;
  float weight;
};

TEST(Bytes, WhatIsWrittenIsReadAgain) {
  std::array<std::byte, 32> memory;
  ByteWriter writer(memory);
  writer.put(std::uint8_t{7});
  writer.put(Record{3, 0.5f});
  writer.put(std::string_view("abc"));
  writer.put_zeros(2);
  writer.put(std::vector<std::int16_t>{-1, 2});
  ASSERT_TRUE(writer.ok());
  EXPECT_EQ(writer.written(), 1u + 8 + 3 + 2 + 4) << "packed";

  ByteReader reader(std::span<const std::byte>(memory).first(writer.written()));
  EXPECT_EQ(reader.get<std::uint8_t>(), 7);
  const Record record = reader.get<Record>();
  EXPECT_EQ(record.rank, 3);
  EXPECT_EQ(record.weight, 0.5f);
  EXPECT_EQ(as_text(reader.take(3)), "abc");
  EXPECT_EQ(reader.get<std::uint16_t>(), 0);
  EXPECT_FALSE(reader.done());
  std::array<std::int16_t, 2> last{};
  reader.get_all(std::span(last));
  EXPECT_THAT(last, testing::ElementsAre(-1, 2));
  EXPECT_TRUE(reader.done());
}

TEST(Bytes, AppendGrowsTextsAndBytes) {
  std::string text;
  std::vector<std::byte> bytes;
  for (int i = 0; i < 2; ++i) {
    append(text, std::uint16_t{0x4142});
    append(text, std::string_view("x"));
    append(bytes, std::uint16_t{0x4142});
    append(bytes, std::string("x"));
  }
  EXPECT_EQ(text, "BAxBAx");
  EXPECT_EQ(as_text(bytes), text);
}

TEST(Bytes, NothingIsReadPastTheEnd) {
  const std::string five = "12345";
  ByteReader reader(five);
  EXPECT_EQ(reader.get<std::uint64_t>(), 0u) << "all of a value or nothing";
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(reader.get<char>(), 0) << "nothing after what failed";
  EXPECT_TRUE(reader.rest().empty());
  EXPECT_FALSE(reader.done());

  ByteReader exact(five);
  EXPECT_EQ(exact.take(5).size(), 5u);
  EXPECT_TRUE(exact.done());
  EXPECT_TRUE(exact.take(std::size_t(-1)).empty()) << "no size is too large to be refused";
  EXPECT_FALSE(exact.ok());
}

TEST(Bytes, NothingIsWrittenPastTheEnd) {
  std::array<char, 6> memory{'a', 'b', 'c', 'd', 'e', 'f'};
  ByteWriter writer(std::as_writable_bytes(std::span(memory)).first(5));
  writer.put(std::uint32_t{0});
  writer.put(std::uint32_t{~0u});
  EXPECT_FALSE(writer.ok());
  writer.put('x');
  EXPECT_TRUE(writer.reserve(std::size_t(-1)).empty());
  EXPECT_THAT(memory, testing::ElementsAre(0, 0, 0, 0, 'e', 'f'));
  EXPECT_EQ(writer.written(), 4u);
}

}  // namespace
}  // namespace ferry::internal
