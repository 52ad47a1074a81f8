// Packets between nodes, as any network may bring them: heads, order, joining of messages that were
// cut, and the control messages inside. Input: {from, sequence, left, bytes of the body, body}, a
// byte or two each, or, after a byte of 255, a packet's raw head.
#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "base/bytes.h"
#include "exchange/internode/count_row.h"
#include "exchange/internode/message_layout.h"
#include "fuzz/layouts.h"
#include "network/message_channel.h"

namespace {

using namespace ferry::internal;
using Bytes = std::span<const std::byte>;

constexpr std::uint64_t kJob = 7;
constexpr int kSize = 4;
constexpr std::int64_t kMostRowBytes = 4096;

struct PacketHead {
  std::uint64_t job, left;
  std::uint32_t sequence, from, body_bytes, is_bundle;
};

class FuzzTransport final : public Transport {
 public:
  explicit FuzzTransport(Bytes input) : input_(input) {}
  std::string address() const override { return {}; }
  void let_in(const std::vector<std::string>&) override {}
  void connect(const std::map<int, std::string>&) override {}
  std::size_t max_body_bytes() override { return 64; }
  bool send(int, Bytes, Bytes, void*) override { return true; }
  bool progress(const PacketReader& read, Events&) override {
    if (input_.remaining() == 0) return false;
    const auto from = input_.get<std::uint8_t>();
    if (from == 255) {
      const Bytes head = input_.take(std::min(sizeof(PacketHead), input_.remaining()));
      read({head, input_.take(input_.get<std::uint8_t>())});
      return true;
    }
    constexpr std::uint8_t kBundle = 64;  // a bit
    PacketHead head{.job = kJob,
                    .left = 0,
                    .sequence = 0,
                    .from = from & ~kBundle & 255u,
                    .body_bytes = 0,
                    .is_bundle = (from & kBundle) != 0};
    head.sequence = input_.get<std::uint8_t>();
    head.left = input_.get<std::uint16_t>();
    const Bytes body =
        input_.take(std::min<std::size_t>(input_.get<std::uint8_t>(), input_.remaining()));
    head.body_bytes = static_cast<std::uint32_t>(body.size());
    read({bytes_of(head), body});
    return input_.ok();
  }
  bool arm() override { return false; }
  void sleep(int) override {}
  void wake() override {}
  std::string describe() const override { return {}; }

 private:
  ByteReader input_;
};

void decode(int from, Bytes message) {
  if (from <= 0 || from >= kSize) std::abort();
  for (std::uint8_t which = 0; which < 3; ++which) {
    for (const std::uint8_t kind : {kRecord, kFlags, kRows, kSumRequest, kSumReply}) {
      const ExchangeMessage decoded =
          read_message(kind, message, ferry::fuzz::layout(which), kMostRowBytes);
      const auto* const record = std::get_if<RecordMessage>(&decoded);
      if (record == nullptr) continue;
      std::vector<std::int32_t> row(ferry::fuzz::layout(which).count_row_bytes() /
                                    sizeof(std::int32_t));
      read_counts(record->counts, row);
      write_record(*record);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  MessageChannel channel(std::make_unique<FuzzTransport>(std::as_bytes(std::span(data, size))), 0,
                         kSize, kJob);
  std::vector<MessageChannel::Loss> losses;
  while (channel.receive(decode, losses)) {
  }
  return 0;
}
