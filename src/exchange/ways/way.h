// Way: one way by which an exchange reaches other nodes, and the owner of its parts. It decodes
// each message that comes by this way once (read_message), and gives it to its parts. A second way
// has tables and a channel of its own. docs/protocol.md, "Between nodes".
//   mate_links.h      the ranks that the way reaches, and the heads of messages to them
//   control_mirror.h  records, counts and flags
//   row_relay.h       messages that this rank passes on, and room for messages
//   stored_rows.h     stores received rows in their slots
//   sum_server.h      requested sums, and their replies
//   message_layout.h  the bytes of all these messages
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "exchange/internode/control_mirror.h"
#include "exchange/internode/mate_links.h"
#include "exchange/internode/row_relay.h"
#include "exchange/internode/sum_server.h"

namespace ferry::internal {

class Way {
 public:
  Way(GroupState& group, const WindowView& view, const ExchangeConfig& config, Algorithm algorithm,
      bool second_way);
  ~Way();
  Way(const Way&) = delete;
  Way& operator=(const Way&) = delete;

  MateLinks& links() noexcept { return links_; }
  ControlMirror& mirror() noexcept { return mirror_; }
  RowRelay& relay() noexcept { return relay_; }
  SumServer& sums() noexcept { return sums_; }
  const ForwardingTable& table() const noexcept { return links_.table(); }

  std::uint32_t channel() const noexcept { return number_; }

  void read(const InMessage& message);  // Channel::read
  bool go_on();                         // Channel::go_on
  void begin_view(std::uint64_t last);  // Ways::begin_view

 private:
  void drop_last_view();

  MateLinks links_;
  ControlMirror mirror_;
  RowRelay relay_;
  SumServer sums_;
  Channel channel_;
  std::uint64_t view_;  // in which relay_ and sums_ work; guarded by the lock of the group
  std::uint32_t number_;
};

}  // namespace ferry::internal
