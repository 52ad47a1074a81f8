#include "exchange/ways/way.h"

#include <utility>
#include <variant>

#include "base/check.h"
#include "exchange/internode/stored_rows.h"

namespace ferry::internal {

namespace {

template <typename... Case>
struct Cases : Case... {
  using Case::operator()...;
};
template <typename... Case>
Cases(Case...) -> Cases<Case...>;  // clang needs it before version 17

}  // namespace

Way::Way(GroupState& group, const WindowView& view, const ExchangeConfig& config,
         Algorithm algorithm, bool second_way)
    : links_(group, view, algorithm, second_way),
      mirror_(links_),
      relay_(links_),
      sums_(links_, config),
      channel_{.read = [this](const InMessage& message) { read(message); },
               .go_on = [this] { return go_on(); },
               .awaited =
                   [this] {
                     return Channel::Awaited{sums_.awaited(), mirror_.expected()};
                   }},
      view_(group.view().number),
      number_(group.open_channel(&channel_)) {
  links_.open(number_);
}

Way::~Way() { links_.group().close_channel(number_); }

// Sums may be for any rank; all other messages are about ranks of other nodes.
void Way::read(const InMessage& message) {
  FERRY_CHECK(view_, ==, links_.group().view().number);
  const int from = message.from;
  const MessageHead& head = message.head;
  const std::span<const std::byte> body = message.body;
  const bool known = head.source < links_.num_ranks() &&
                     head.level <= links_.topology().find_level(Topology::kHost) &&
                     !links_.view().here(from) &&
                     (head.kind == kSumReply || !links_.view().here(head.source));
  if (!known) return;
  std::visit(Cases{[](std::monostate) {},
                   [&](const RecordMessage& record) {
                     relay_.keep(head, body);
                     mirror_.write(head.source, head.number, record);
                   },
                   [&](const RankFlags& flags) {
                     relay_.keep(head, body);
                     mirror_.write(head.source, head.number, flags);
                     if (flags.progress == kDeparted) sums_.end(head.source);
                   },
                   [&](const RowUnits& rows) {
                     relay_.keep(head, body);
                     store_rows(links_.view(), head.number, rows.units);
                   },
                   [&](const SumRequestMessage& ask) { sums_.take(from, head, ask); },
                   [&](const SumReply& reply) { sums_.take(from, head, reply); }},
             read_message(head.kind, body, links_.layout(), sums_.max_row_bytes()));
}

bool Way::go_on() {
  drop_last_view();
  const bool passed = relay_.go_on();
  const bool served = sums_.serve();
  if (passed || served) links_.group().ring();
  channel_.holds = relay_.holds();
  channel_.done = !channel_.holds && channel_.kept_open && mirror_.ended();
  return passed || served;
}

// Drops what this rank kept for others in the last view. Not called inside read(): it gives send
// buffers back to the MessageChannel, which a MessageReader must not call.
void Way::drop_last_view() {
  const std::uint64_t view = links_.group().view().number;
  if (std::exchange(view_, view) == view) return;
  relay_.drop();
  sums_.drop();
}

void Way::begin_view(std::uint64_t last) {
  const auto held = links_.group().lock();
  sums_.begin_view(last);
  mirror_.begin_view();
}

}  // namespace ferry::internal
