// BootstrapCollectives: collectives of processes. Every rank sends its bytes to the coordinator,
// which replies to all. join() makes a Coordinator on the first rank of the roster and a Member on
// the others.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/descriptor.h"
#include "bootstrap/endpoint.h"
#include "bootstrap/hello.h"
#include "bootstrap/local_ranks.h"
#include "ferry/status.h"

namespace ferry::internal {

class BootstrapCollectives;

// The ranks that take part in collectives, and the endpoint at which they meet.
struct Roster {
  Endpoint endpoint;
  Hello self;
  // The ranks of the group that take part. The first one coordinates, and the others follow in
  // ascending order. A place is an index of this vector. On a newcomer, which knows no other rank
  // yet, this is {kUnknown, the newcomer}.
  std::vector<int> ranks;
  LocalLaunch launch = {};  // which of these ranks were started on this host
  // Set if these ranks are those of one host: the collectives of all hosts. A failure of `outer`
  // ends the waits of these ranks.
  BootstrapCollectives* outer = nullptr;
  std::string welcome = {};  // the coordinator sends it to the others when all have come

  static constexpr int kUnknown = -1;
  int coordinator() const { return ranks.front(); }
  std::size_t size() const { return ranks.size(); }
  // The place of `rank`, or -1 if it takes no part.
  int place(int rank) const {
    if (rank == coordinator()) return 0;
    const auto at = std::lower_bound(ranks.begin() + 1, ranks.end(), rank);
    return at != ranks.end() && *at == rank ? static_cast<int>(at - ranks.begin()) : -1;
  }
};

// The descriptors that the coordinator sends, by place. The one at the coordinator's own place is
// not sent.
using Handouts = std::vector<std::shared_ptr<const Descriptor>>;

class BootstrapCollectives {
 public:
  virtual ~BootstrapCollectives() = default;

  // Returns every rank's text, by place. After a failure the ranks may be at different calls, so
  // every later call throws that failure again.
  std::vector<std::string> all_gather(std::string_view mine, Deadline deadline);

  // Must follow an all_gather. The coordinator sends each member the descriptor at the member's
  // place in `handouts`, or a frame without a descriptor if `handouts` is empty. A member passes no
  // handouts, and returns the descriptor that it received.
  std::optional<Descriptor> hand_out(const Handouts& handouts, Deadline deadline);

  // To be called between two collectives. Throws Error if one of the ranks was lost or gave up.
  void look();
  // Sends `error` to the other ranks at once, unless an earlier call failed, and throws it. This
  // rank makes no more calls.
  [[noreturn]] void give_up(const Error& error);
  // The address of this host by which a connection to another rank goes; empty: none is known.
  virtual std::string local_address() const = 0;
  // What the coordinator sent when all had come (Roster::welcome).
  const std::string& welcome() const noexcept { return welcome_; }

 protected:
  std::string welcome_;

 private:
  virtual std::vector<std::string> gather(std::uint32_t call, std::string_view mine,
                                          Deadline deadline) = 0;
  virtual std::optional<Descriptor> pass(std::uint32_t call, const Handouts& handouts,
                                         Deadline deadline) = 0;
  virtual void watch() = 0;
  [[noreturn]] virtual void fail(const Error& error) = 0;
  template <typename Call>
  auto guarded(const Call& call) -> decltype(call());

  std::uint32_t num_calls_ = 0;
  std::optional<Error> failure_;
};

// Connects to the other ranks. Throws Error that names the ranks that are missing or do not fit.
std::unique_ptr<BootstrapCollectives> join(const Roster& roster, Deadline deadline);

// Packs the texts of a kGathered frame. Equal texts of neighbours are sent once, after their
// number: most collectives compare texts that are equal on all ranks, and every rank gets the
// frame.
std::string pack(const std::vector<std::string>& texts);
std::vector<std::string> unpack(std::string_view packed, std::size_t size);

}  // namespace ferry::internal
