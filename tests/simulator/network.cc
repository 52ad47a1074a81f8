#include "simulator/network.h"

#include <algorithm>
#include <array>

namespace ferry::test {

namespace {

// Journeys of a packet: the first in the ordinary course, then the disturbances. An enumeration of
// all choices tries the first three.
constexpr std::array<std::int64_t, 8> kJourneyNs = {30'000,  250'000, 3'000'000, 5'000,
                                                    100'000, 700'000, 1'500'000, 10'000'000};
constexpr std::array<std::int64_t, 4> kTellNs = {100'000, 10'000, 2'000'000, 30'000'000};
constexpr std::array<std::size_t, 4> kBodyBytes = {std::size_t{256} << 10, 1'000, 37, 8'192};
constexpr int kJourneyRarity = 4, kTellRarity = 2, kBodyRarity = 4, kRepeatRarity = 24,
              kTicketRarity = 3, kDropRarity = 2, kHeldRarity = 3;
constexpr std::size_t kCopiedBytes = 1'024;  // larger bodies stay with the sender for a while
constexpr std::size_t kJobBytes = 8;  // of a packet's head: the random job number, in no digest

std::uint64_t digest_of_packet(std::span<const std::byte> head, std::span<const std::byte> body) {
  head = head.subspan(std::min(kJobBytes, head.size()));
  return digest_of(body.data(), body.size(), digest_of(head.data(), head.size()));
}

template <std::size_t kCount>
std::int64_t drawn(Simulation& simulation, const std::array<std::int64_t, kCount>& table,
                   int rarity) {
  return table[static_cast<std::size_t>(simulation.choose(kCount, rarity))];
}

}  // namespace

class Network::SimulatedTransport final : public internal::Transport {
 public:
  SimulatedTransport(Network& network, int number)
      : network_(network), simulation_(network.simulation_), number_(number) {
    box().open = box().used = true;
    ++network_.num_transports_;
  }
  ~SimulatedTransport() override {
    network_.close(number_);
    --network_.num_transports_;
  }

  std::string address() const override { return std::to_string(number_); }
  void let_in(const std::vector<std::string>&) override {}
  void connect(const std::map<int, std::string>& addresses) override {
    for (const auto& [peer, address] : addresses) {
      const auto other = static_cast<std::size_t>(std::stoi(address));
      box().peers[other] = peer;
      if (box().cut[other]) network_.lose(number_, static_cast<int>(other), "it is gone");
    }
  }
  void disconnect(int peer) override { network_.disconnect(number_, peer); }
  std::size_t max_body_bytes() override {
    if (simulation_.enumerates()) return kBodyBytes[0];
    return kBodyBytes[static_cast<std::size_t>(simulation_.choose(kBodyBytes.size(), kBodyRarity))];
  }
  bool send(int peer, std::span<const std::byte> head, std::span<const std::byte> body,
            void* ticket) override {
    return network_.send(number_, network_.find(number_, peer),
                         {.from = number_,
                          .head = {head.begin(), head.end()},
                          .body = {},
                          .theirs = body,
                          .ticket = ticket});
  }

  bool progress(const PacketReader& read, Events& events) override {
    for (const auto& [to, packet] : std::exchange(box().held, {})) network_.depart(to, packet);
    Box mine;
    std::swap(mine.arrived, box().arrived);
    std::swap(mine.sent, box().sent);
    std::swap(mine.losses, box().losses);
    for (const auto& packet : mine.arrived) {
      if (simulation_.dead(simulation_.running())) break;  // it died while it read these
      simulation_.note("reads of", static_cast<std::uint64_t>(packet->from),
                       digest_of_packet(packet->head, packet->body));
      read({packet->head, packet->body});
    }
    events.sent.insert(events.sent.end(), mine.sent.begin(), mine.sent.end());
    for (const auto& loss : mine.losses) {
      simulation_.note("loses", static_cast<std::uint64_t>(loss.peer));
      events.lost.push_back({loss.peer, loss.why});
    }
    return !mine.empty();
  }
  bool arm() override { return box().empty() && box().held.empty(); }
  void sleep(int wait_us) override {
    if (arm()) simulation_.sleep(&box(), std::int64_t{wait_us} * 1'000);
  }
  void wake() override { simulation_.wake(&box()); }
  std::string describe() const override { return "a simulation"; }

 private:
  Box& box() { return network_.box(number_); }

  Network& network_;
  Simulation& simulation_;
  const int number_;
};

Network::Network(Simulation& simulation, std::vector<int> nodes)
    : simulation_(simulation), nodes_(std::move(nodes)), parted_ns_(nodes_.size()) {
  for (std::size_t process = 0; process < nodes_.size(); ++process) {
    add_box(static_cast<int>(process));
    last_.push_back(static_cast<int>(process));
  }
}

void Network::add_box(int process) {
  boxes_.emplace_back().process = process;
  for (Box& box : boxes_) {
    box.peers.resize(boxes_.size(), kNobody);
    box.cut.resize(boxes_.size());
    box.lost.resize(boxes_.size());
  }
}

std::unique_ptr<internal::Transport> Network::transport(int rank) {
  int& last = last_[static_cast<std::size_t>(rank)];
  if (box(last).used) {
    last = static_cast<int>(boxes_.size());
    add_box(rank);
  }
  return std::make_unique<SimulatedTransport>(*this, last);
}

// A packet starts when no outage of either end, and no hold-up between the two, lasts any more.
std::int64_t Network::journey_ns(int from, int to) {
  if (fixed_journey_ns_ > 0) return simulation_.time_ns() + fixed_journey_ns_;
  const std::int64_t took = simulation_.enumerates()
                                ? kJourneyNs[static_cast<std::size_t>(simulation_.choose(3, 1))]
                                : drawn(simulation_, kJourneyNs, kJourneyRarity);
  std::int64_t starts = simulation_.time_ns();
  for (const int rank : {from, to})
    starts = std::max(starts,
                      parted_ns_[static_cast<std::size_t>(nodes_[static_cast<std::size_t>(rank)])]);
  const auto held = held_up_ns_.find({from, to});
  if (held != held_up_ns_.end()) starts = std::max(starts, held->second);
  return starts + took;
}

int Network::num_connected(int rank) const {
  const std::vector<int>& peers = box(last_[static_cast<std::size_t>(rank)]).peers;
  return static_cast<int>(std::ssize(peers) - std::ranges::count(peers, kNobody));
}

int Network::reached(int process, int peer) const {
  const int found = find(last_[static_cast<std::size_t>(process)], peer);
  return found < 0 ? -1 : box(found).process;
}

// The transport at the other end; -1: there is none.
int Network::find(int transport, int peer) const {
  const std::vector<int>& peers = box(transport).peers;
  const auto found = std::ranges::find(peers, peer);
  return found == peers.end() ? -1 : static_cast<int>(found - peers.begin());
}

// `transport` closes its connection to `peer`: nothing passes there any more, in either direction.
void Network::disconnect(int transport, int peer) {
  const int other = find(transport, peer);
  if (other < 0) return;
  Box& mine = box(transport);
  mine.peers[static_cast<std::size_t>(other)] = kNobody;
  mine.cut[static_cast<std::size_t>(other)] = mine.lost[static_cast<std::size_t>(other)] = true;
  std::erase_if(mine.losses, [peer](const Loss& loss) { return loss.peer == peer; });
  std::erase_if(mine.arrived, [other](const auto& packet) { return packet->from == other; });
}

std::int64_t Network::tell_ns() {
  return simulation_.time_ns() + drawn(simulation_, kTellNs, kTellRarity);
}

bool Network::send(int from, int to, Packet sent) {
  if (to < 0 || box(from).lost[static_cast<std::size_t>(to)] || dead(from)) return true;
  if (on_send) on_send(box(from).process, sent.head, sent.theirs);
  simulation_.progressed();
  auto packet = std::make_shared<Packet>(std::move(sent));
  overheard_ = packet->head;
  box(from).leaving.push_back(packet);
  const bool small = packet->theirs.size() <= kCopiedBytes;
  const bool at_once =
      simulation_.enumerates() || (small && simulation_.choose(2, kTicketRarity) == 0);
  if (at_once) packet->ticket = nullptr;
  if (at_once) leave(from, packet);
  const bool held = !at_once && simulation_.choose(2, kHeldRarity) > 0;
  if (held) {
    box(from).held.emplace_back(to, packet);
  } else {
    depart(to, packet);
  }
  return at_once;
}

// A body that is still in the sender's memory leaves it when the packet arrives, and not before.
void Network::depart(int to, const std::shared_ptr<Packet>& packet) {
  const int from = packet->from;
  const int sender = box(from).process, receiver = box(to).process;
  std::int64_t at = journey_ns(sender, receiver);
  simulation_.at(at, [this, from, packet] { leave(from, packet); });
  const bool twice = !simulation_.enumerates() && simulation_.choose(2, kRepeatRarity) > 0;
  for (int copy = 0; copy < (twice ? 2 : 1); ++copy) {
    simulation_.at(at, [this, to, packet] { arrive(to, packet); });
    if (twice) at = std::max(at, journey_ns(sender, receiver));
  }
}

// The network has copied the body: the sender may write to its memory again.
void Network::leave(int from, const std::shared_ptr<Packet>& packet) {
  if (std::erase(box(from).leaving, packet) == 0) return;  // closed
  packet->body.assign(packet->theirs.begin(), packet->theirs.end());
  packet->theirs = {};
  if (packet->ticket == nullptr) return;
  box(from).sent.push_back(packet->ticket);
  simulation_.wake(&box(from));
}

void Network::arrive(int to, const std::shared_ptr<Packet>& packet) {
  Box& there = box(to);
  const bool cut = packet->from >= 0 && there.lost[static_cast<std::size_t>(packet->from)];
  if (packet->gone || cut || !there.open || dead(to)) return;
  there.arrived.push_back(packet);
  simulation_.progressed();
  simulation_.wake(&there);
}

// The transport is told later that it has lost `peer`. Packets that arrive after that are dropped.
void Network::lose(int transport, int peer, const std::string& why) {
  Box& mine = box(transport);
  mine.cut[static_cast<std::size_t>(peer)] = true;
  if (mine.peers[static_cast<std::size_t>(peer)] == kNobody) return;
  simulation_.at(tell_ns(), [this, &mine, peer, why] {
    if (!mine.open || mine.lost[static_cast<std::size_t>(peer)]) return;
    mine.lost[static_cast<std::size_t>(peer)] = true;
    mine.losses.push_back({mine.peers[static_cast<std::size_t>(peer)], why});
    simulation_.progressed();
    simulation_.wake(&mine);
  });
}

void Network::cut(int rank, int peer) {
  simulation_.note("is cut", static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(peer));
  lose(rank, peer, "the connection is cut");
  lose(peer, rank, "the connection is cut");
}

void Network::cut_end(int rank, int peer) {
  simulation_.note("loses its end", static_cast<std::uint64_t>(rank),
                   static_cast<std::uint64_t>(peer));
  lose(rank, peer, "the connection is cut");
}

void Network::hold_up(int from, int to, std::int64_t until_ns) {
  simulation_.note("is held up", static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(to));
  std::int64_t& until = held_up_ns_[{from, to}];
  until = std::max(until, until_ns);
}

void Network::part(int node, std::int64_t until_ns) {
  simulation_.note("is out of reach", static_cast<std::uint64_t>(node),
                   static_cast<std::uint64_t>(until_ns));
  std::int64_t& until = parted_ns_[static_cast<std::size_t>(node)];
  until = std::max(until, until_ns);
}

void Network::kill(int rank) {
  const int last = last_[static_cast<std::size_t>(rank)];
  for (const auto& packet : box(last).leaving) packet->gone = true;
  for (int peer = 0; peer < static_cast<int>(boxes_.size()); ++peer)
    lose(peer, last, "its process is gone");
}

// All connected transports are told. They may lose packets that have arrived and are not read yet.
void Network::close(int transport) {
  Box& mine = box(transport);
  for (const auto& packet : mine.leaving) packet->gone = true;
  mine.leaving.clear();
  mine.held.clear();
  mine.open = false;
  if (dead(transport)) return;
  simulation_.note("closes its transport");
  for (int peer = 0; peer < static_cast<int>(boxes_.size()); ++peer) {
    const bool drops = simulation_.choose(2, kDropRarity) > 0;
    if (drops)
      std::erase_if(box(peer).arrived,
                    [transport](const auto& packet) { return packet->from == transport; });
    lose(peer, transport, "its transport is closed");
  }
}

void Network::send_strange(int rank) {
  Packet packet{.from = -1, .head = overheard_, .body = {}, .theirs = {}, .ticket = nullptr};
  constexpr std::array<std::size_t, 4> kHeads = {32, 0, 5, 64};
  const std::size_t head = kHeads[static_cast<std::size_t>(simulation_.choose(4, 2))];
  packet.head.resize(head);
  for (std::size_t i = 0; i < std::min(head, kJobBytes); ++i) packet.head[i] = std::byte{0x5a};
  packet.body.resize(static_cast<std::size_t>(simulation_.choose(100, 2)), std::byte{0xff});
  arrive(last_[static_cast<std::size_t>(rank)], std::make_shared<Packet>(std::move(packet)));
}

}  // namespace ferry::test
