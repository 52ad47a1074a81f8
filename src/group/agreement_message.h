// AgreementMessage: what speakers of nodes send to each other while they agree on the next view
// (agreement_between_nodes.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "group/survival.h"

namespace ferry::internal {

struct AgreementMessage {
  enum class What : std::uint8_t {
    kHere,      // the sender's node has come; to the node that it expects to propose
    kWaits,     // the sender's node waits for `members`
    kPrepare,   // may `ballot` be proposed?
    kPromise,   // yes, and what the node has accepted so far
    kAccept,    // `members` is proposed
    kAccepted,  // the node has accepted the ballot
    kRefused,   // the node has promised `ballot`, which is later
    kDecided,   // the view has `members`
    kOutvoted,  // the sender's node reaches too few votes, and takes part no more
    kUnlinked,  // to one who asks: the sender does not speak for its node, another rank does
  };
  // What a node knows of a rank: whether it has come to the view, and how many barriers and objects
  // it had before.
  struct RankSeat {
    std::uint64_t seat = 0, barriers = 0, objects = 0;
    std::int64_t rank = 0;
  };

  What what = What::kHere;
  std::uint64_t ballot = 0;
  std::uint64_t accepted = 0;  // the ballot of `members` in a promise; 0: none
  std::vector<std::int32_t> members = {};
  std::vector<RankSeat> seats = {};
  std::vector<Lasting::Prepared> objects = {};
  // Ranks that died or left, or to which a rank of the sender's node has no link.
  std::vector<std::int32_t> unreached = {};

  static bool asks(What what) noexcept {
    return what == What::kHere || what == What::kPrepare || what == What::kAccept;
  }
  std::vector<std::byte> bytes() const;
  // nullopt: the bytes are no message of a group of `size`.
  static std::optional<AgreementMessage> read(std::span<const std::byte> bytes, int size);
  // Whether the bytes are of a message to which kDecided is an answer.
  static bool asks(std::span<const std::byte> bytes) noexcept;
  bool asks() const noexcept { return asks(what); }
  // Whether the bytes are of a message with kOutvoted.
  static bool gives_up(std::span<const std::byte> bytes) noexcept;
};

}  // namespace ferry::internal
