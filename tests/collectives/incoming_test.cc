// Messages between nodes that no rank of ferry sends are dropped, and leave the segment as it was.
#include "collectives/incoming.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "base/bytes.h"

namespace ferry::test {
namespace {

using namespace ferry::internal;

constexpr int kMembers = 3, kReader = 0, kSender = 2;

class IncomingMessages : public testing::Test {
 protected:
  IncomingMessages()
      : shape_(kMembers, 3 * 4096),
        layout_(kMembers, 4096, shape_.all_bytes),
        segment_(static_cast<std::byte*>(std::aligned_alloc(4096, layout_.segment_bytes())),
                 std::free),
        incoming_(segment_.get(), layout_, shape_, kReader, kMembers) {
    std::memset(segment_.get(), 0, layout_.segment_bytes());
  }

  MailboxFlags& mailbox() const {
    return *reinterpret_cast<MailboxFlags*>(segment_.get() + layout_.mailboxes(kSender) +
                                            kReader * shape_.stride);
  }
  std::uint64_t step() const {
    return reinterpret_cast<CallFlag*>(segment_.get() + layout_.control(kSender))
        ->step.load(std::memory_order_relaxed);
  }
  bool read(std::uint8_t kind, std::uint64_t number, const std::vector<std::byte>& body) {
    return incoming_.read({kSender, kind, number, body}, /*serves=*/true);
  }
  bool piece(std::uint64_t position, std::uint64_t bytes, std::uint64_t total) {
    std::vector<std::byte> body;
    append(body, PieceHead{.bytes = bytes, .total = total, .tag = 0, .dtype = DataType::kBytes});
    body.resize(sizeof(PieceHead) + bytes);
    return read(MirrorMessage::kPiece, position, body);
  }

  std::vector<std::byte> body_of(const CallRecord& record) const {
    const std::vector<std::byte> counts(2 * kMembers * sizeof(std::int64_t));
    std::vector<std::byte> body;
    Incoming::write_call(record, counts.data(), kMembers, body);
    return body;
  }
  const CallRecord& record(std::uint64_t number) const {
    return *reinterpret_cast<CallRecord*>(segment_.get() + layout_.record(kSender, number));
  }

  MailboxShape shape_;
  CollectivesLayout layout_;
  std::unique_ptr<std::byte, void (*)(void*)> segment_;
  Incoming incoming_;
};

TEST_F(IncomingMessages, APieceThatIsNotTheNextOneIsDropped) {
  EXPECT_TRUE(piece(0, 64, 64));
  EXPECT_EQ(mailbox().sent.load(std::memory_order_relaxed), 128u);
  // A ring that is said to reach further has pieces whose heads nobody sent.
  for (const std::uint64_t position : {0ull, 64ull, 192ull, 4224ull, ~0ull - 127}) {
    EXPECT_FALSE(piece(position, 64, 64)) << position;
    EXPECT_EQ(mailbox().sent.load(std::memory_order_relaxed), 128u) << position;
  }
  EXPECT_TRUE(piece(128, 64, 64));
}

TEST_F(IncomingMessages, APieceForWhichThereIsNoRoomIsDropped) {
  for (std::uint64_t position = 0; position < 4096; position += 1024)
    EXPECT_TRUE(piece(position, 1024 - 64, 1024 - 64));
  EXPECT_FALSE(piece(4096, 64, 64)) << "nothing has been taken";
  mailbox().taken.store(1024, std::memory_order_relaxed);
  EXPECT_FALSE(piece(4096, 1024, 1024));
  EXPECT_TRUE(piece(4096, 64, 64));
}

TEST_F(IncomingMessages, APieceThatIsLongerThanItsMessageIsDropped) {
  EXPECT_FALSE(piece(0, 65, 64));
  EXPECT_FALSE(piece(0, 0, 64)) << "a message whose pieces never end";
  EXPECT_TRUE(piece(0, 64, 100));
  EXPECT_FALSE(piece(128, 64, 100)) << "36 bytes are to come";
  EXPECT_FALSE(piece(128, 36, 50)) << "the message has 100 bytes";
  EXPECT_TRUE(piece(128, 36, 100));
  EXPECT_TRUE(piece(256, 0, 0));
}

TEST_F(IncomingMessages, ACallThatIsNotALaterOneIsDropped) {
  const std::vector<std::byte> body = body_of({});
  EXPECT_TRUE(read(MirrorMessage::kCall, 5, body));
  EXPECT_EQ(step(), Step::written(5, 0));
  // The flag of 1 << 34 would be that of call 0.
  for (const std::uint64_t number : {0ull, 4ull, 5ull, 1ull << 34, ~0ull}) {
    EXPECT_FALSE(read(MirrorMessage::kCall, number, body)) << number;
    EXPECT_EQ(step(), Step::written(5, 0)) << number;
  }
  EXPECT_FALSE(read(MirrorMessage::kCall, 6, std::vector<std::byte>(body.size() - 8)));
  EXPECT_TRUE(read(MirrorMessage::kStep, Step::end(5), {}));
  EXPECT_TRUE(read(MirrorMessage::kCall, 6, body));
}

// After the record come the counts of its kind, or the reason of a refusal.
TEST_F(IncomingMessages, ACallOfAnotherLengthIsDropped) {
  std::uint64_t number = 0;
  for (const CallKind kind : {CallKind::kBarrier, CallKind::kAllGather, CallKind::kAllToAll}) {
    std::vector<std::byte> body = body_of({.terms = {.kind = kind}});
    body.push_back({});
    EXPECT_FALSE(read(MirrorMessage::kCall, ++number, body));
    body.resize(body.size() - 2);
    EXPECT_FALSE(read(MirrorMessage::kCall, number, body));
    body.push_back({});
    EXPECT_TRUE(read(MirrorMessage::kCall, number, body));
  }
  CallRecord refusal;
  refusal.status = Code::kInvalidArgument;
  std::memset(refusal.reason, 'x', sizeof refusal.reason - 1);
  std::vector<std::byte> body = body_of(refusal);
  EXPECT_TRUE(read(MirrorMessage::kCall, ++number, body));
  EXPECT_EQ(std::strlen(record(number).reason), sizeof refusal.reason - 1);
  body.push_back(std::byte{'x'});
  EXPECT_FALSE(read(MirrorMessage::kCall, ++number, body)) << "a reason without an end";
}

TEST_F(IncomingMessages, DataOutsideTheWindowOfTheSenderAreDropped) {
  const std::size_t begin = layout_.window(kSender), size = layout_.window_bytes();
  const std::vector<std::byte> before(segment_.get(), segment_.get() + layout_.segment_bytes());
  const std::vector<std::byte> data(64, std::byte{1});
  for (const std::uint64_t offset : {begin - 64, begin - 1, begin + size - 63, ~std::size_t{0}})
    read(MirrorMessage::kData, offset, data);
  read(MirrorMessage::kData, begin, std::vector<std::byte>(size + 1, std::byte{1}));
  EXPECT_EQ(std::memcmp(before.data(), segment_.get(), before.size()), 0);
  read(MirrorMessage::kData, begin + size - 64, data);
  EXPECT_EQ(segment_.get()[begin + size - 64], std::byte{1});
}

}  // namespace
}  // namespace ferry::test
