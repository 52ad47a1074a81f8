// Star: collectives of processes: all to the hub and back. Owns this process's side, a Hub or a
// Spoke, or neither in a party of one. Called by host.h and processes.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "bootstrap/hub.h"
#include "bootstrap/party.h"
#include "bootstrap/spoke.h"

namespace ferry::internal {

class Star {
 public:
  // Meets. After a failure the ranks are no longer at the same call: it is thrown again and again.
  Star(const Party& party, Deadline deadline);

  std::size_t size() const noexcept { return size_; }
  bool is_hub() const noexcept { return is_hub_; }

  // Every rank's text, by seat.
  std::vector<std::string> all_gather(std::string_view mine, Deadline deadline);

  // After an all_gather, the hub hands every other seat its descriptor; none when there is nothing
  // to hand out.
  void hand_out(const std::vector<std::shared_ptr<const Descriptor>>& by_seat, Deadline deadline);
  // What the hub hands to this seat; nullopt when it has nothing.
  std::optional<Descriptor> take(Deadline deadline);

 private:
  template <typename Call>
  auto guarded(const Call& call) -> decltype(call());

  std::size_t size_;
  bool is_hub_;
  std::optional<Hub> hub_;
  std::optional<Spoke> spoke_;
  std::uint32_t num_calls_ = 0;
  std::optional<Error> failure_;
};

}  // namespace ferry::internal
