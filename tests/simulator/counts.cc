#include "simulator/counts.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/bytes.h"
#include "bootstrap/rendezvous.h"
#include "exchange/internode/message_layout.h"
#include "exchange/seat.h"
#include "exchange/setup/configuration.h"
#include "exchange/setup/setup.h"
#include "group/state.h"
#include "simulator/kernel.h"
#include "simulator/machine.h"
#include "simulator/network.h"
#include "simulator/private_memory.h"

namespace ferry::test {

namespace {

using internal::MessageHead;

constexpr std::uint64_t kMostSteps = 200'000'000;
constexpr int kPort = 4711, kMoreDescriptors = 1 << 20;
constexpr std::chrono::seconds kDeadline{1000};
// How long a message between hosts takes. Everything else takes nearly no time, so the time of a
// step is the length of its longest chain of messages.
constexpr std::int64_t kMessageNs = 20'000'000;
constexpr std::int64_t kSettleNs = 20 * kMessageNs;  // then all messages have arrived

// Never disturbs the ordinary course.
class OrdinaryChoices final : public Choices {
 public:
  int choose(int, int) override { return 0; }
};

// The head of a packet of MessageChannel ends with this.
bool is_bundle(std::span<const std::byte> head) {
  std::uint32_t bundle = 0;
  std::memcpy(&bundle, head.data() + head.size() - sizeof bundle, sizeof bundle);
  return bundle != 0;
}

const char* name_of(const MessageHead& head) {
  constexpr std::array kOfGroup = {"barrier",     "abort",     "acknowledgement", "listens",
                                   "begins view", "agreement", "meeting"};
  constexpr std::array kOfExchange = {"record", "flags", "rows", "sum request", "sum reply"};
  return head.channel == 0 ? kOfGroup[head.kind] : kOfExchange[head.kind];
}

// What one rank sends in a step.
struct RankSent {
  Sent packets, sockets;
  std::map<std::string, Sent> kinds;

  void add_message(std::span<const std::byte> message) {
    kinds[name_of(internal::ByteReader(message).get<MessageHead>())].add(message.size());
  }
  void add_packet(std::span<const std::byte> head, std::span<const std::byte> body) {
    packets.add(head.size() + body.size());
    if (!is_bundle(head)) return add_message(body);
    for (internal::ByteReader reader(body); reader.remaining() > 0;)
      add_message(reader.take(reader.get<std::uint64_t>()));
  }
};

void raise_to(Sent& most, const Sent& sent) {
  most.messages = std::max(most.messages, sent.messages);
  most.bytes = std::max(most.bytes, sent.bytes);
}

// Every expert gets equally many entries, and the entries of each rank are spread over all experts.
void balance(const Shape& shape, int rank, internal::RankInput& input) {
  const std::int64_t apart =
      std::max<std::int64_t>(1, shape.num_experts / (shape.tokens * shape.top_k));
  for (std::size_t i = 0; i < input.topk_ids.size(); ++i)
    input.topk_ids[i] = (rank + static_cast<std::int64_t>(i) * apart) % shape.num_experts;
}

Scenario scenario_of(const Shape& shape) {
  ExchangeConfig config{.max_tokens = shape.tokens,
                        .hidden = 16,
                        .num_experts = shape.num_experts,
                        .top_k = shape.top_k,
                        .layout = shape.layout};
  config.algorithm = Algorithm::kHierarchical;
  Scenario scenario{1, shape.num_ranks(), nodes_of(shape.topology), true, config, {}};
  Random random(scenario.seed);
  Round round;
  for (int rank = 0; rank < scenario.num_ranks; ++rank) {
    round.inputs.push_back(random_input(config, shape.tokens, random));
    balance(shape, rank, round.inputs.back());
    scenario.nodes.place(rank, round.inputs.back());
  }
  expect_dispatch(config, round);
  round.combines.push_back(random_combine(config, round, config.hidden, config.dtype, random));
  scenario.rounds.push_back(std::move(round));
  return scenario;
}

class CountedRun {
 public:
  explicit CountedRun(const Shape& shape)
      : shape_(shape),
        scenario_(scenario_of(shape)),
        num_ranks_(scenario_.num_ranks),
        victim_(num_ranks_ / 2 + 1),
        simulation_(choices_, /*trace=*/false),
        network_(simulation_, scenario_.nodes.of_rank),
        kernel_(simulation_, network_, scenario_.nodes.of_rank),
        sent_(static_cast<std::size_t>(num_ranks_)),
        backed_(sent_.size()) {
    simulation_.limit_steps(kMostSteps);
    network_.fix_journey(kMessageNs);
    network_.on_send = [this](int rank, auto head, auto body) {
      sent_[static_cast<std::size_t>(rank)].add_packet(head, body);
    };
    kernel_.on_send = [this](int rank, bool, std::size_t bytes) {
      sent_[static_cast<std::size_t>(rank)].sockets.add(bytes);
    };
    machine_.on_commit = [this](int rank, std::size_t bytes) {
      backed_[static_cast<std::size_t>(rank)] += static_cast<std::int64_t>(bytes);
    };
  }

  ScaleCounts play() {
    forget_allocations();
    for (int rank = 0; rank < num_ranks_; ++rank) {
      kernel_.leave_descriptors(rank, kMoreDescriptors);
      simulation_.add_rank([this, rank] { be(rank); });
    }
    simulation_.after_step([](int) {});
    began_ns_ = simulation_.time_ns();
    if (!simulation_.run()) counts_.wrong.emplace_back("the run did not end");
    count_layout();
    return counts_;
  }

 private:
  void be(int rank) {
    try {
      take_part(rank);
    } catch (const std::exception& failure) {
      counts_.wrong.push_back("rank " + std::to_string(rank) + ": " + failure.what());
    }
  }

  void take_part(int rank) {
    GroupOptions options{.deadline = kDeadline, .topology = shape_.topology};
    const auto by = internal::Deadline::after(kDeadline);
    const Group group = internal::GroupState::join(
        meet(rank, by), options, {"simulation", "a test"}, by, internal::ucx_transport);
    end_step(counts_.join);
    std::optional<Seat> seat(std::in_place, group, scenario_);
    end_step(counts_.create);
    play_rounds(*seat);
    if (simulation_.dead(rank)) return;
    Received received;
    const Status status = seat->exchange().dispatch(seat->dispatch_call(0).args(), received);
    require_status(status, Code::kPeerLost, {"rank " + std::to_string(victim_)}, "after a death");
    end_step(counts_.death);
  }

  // In the first round memory and connections are made; that round is not counted.
  void play_rounds(Seat& seat) {
    StepCounts uncounted;
    seat.play(0);
    end_step(uncounted);
    Received received = seat.dispatch(0);
    end_step(counts_.dispatch);
    seat.combine(0, received.handle, &received);
    received = {};
    end_step(counts_.combine);
  }

  std::unique_ptr<internal::Rendezvous> meet(int rank, const internal::Deadline& by) {
    internal::TcpEndpoint endpoint{.address = {{"10.77.0.1"}, kPort},
                                   .secret = "the secret of a simulation",
                                   .group = "a simulation",
                                   .interfaces = "",
                                   .listener = nullptr};
    return internal::tcp_rendezvous(endpoint, rank, scenario_.nodes.of_rank, by);
  }

  // Waits until all living ranks have called it, and sends no message for that. The last rank
  // records the step.
  void end_step(StepCounts& step) {
    const int living = num_ranks_ - (victim_died_ ? 1 : 0);
    const int number = num_steps_;
    if (++arrived_ < living) {
      while (number == num_steps_) simulation_.sleep(&arrived_, kDeadline.count() * 1'000'000'000);
      return;
    }
    write_down(step);
    simulation_.sleep(nullptr, kSettleNs);
    if (&step == &counts_.create) measure_standing();
    if (&step == &counts_.combine) kill_victim();
    std::ranges::fill(sent_, RankSent{});
    arrived_ = 0;
    ++num_steps_;
    began_ns_ = simulation_.time_ns();
    simulation_.wake(&arrived_);
  }

  void write_down(StepCounts& step) {
    step.chain = (simulation_.time_ns() - began_ns_ + kMessageNs / 2) / kMessageNs;
    step.rank_0 = sent_[0].sockets;
    for (int rank = 0; rank < num_ranks_; ++rank) {
      const RankSent& sent = sent_[static_cast<std::size_t>(rank)];
      raise_to(step.most, sent.packets);
      for (const auto& [kind, of_kind] : sent.kinds) raise_to(step.kinds[kind], of_kind);
      if (!coordinates(rank)) raise_to(step.most_others, sent.sockets);
    }
  }

  // The first rank of each host coordinates those of its host.
  bool coordinates(int rank) const {
    const std::vector<int>& nodes = scenario_.nodes.of_rank;
    return rank == 0 ||
           nodes[static_cast<std::size_t>(rank)] != nodes[static_cast<std::size_t>(rank) - 1];
  }

  void measure_standing() {
    counts_.descriptors_rank_0 = kernel_.num_open(0);
    for (int rank = 1; rank < num_ranks_; ++rank) {
      counts_.descriptors_others =
          std::max<std::int64_t>(counts_.descriptors_others, kernel_.num_open(rank));
      counts_.endpoints = std::max<std::int64_t>(counts_.endpoints, network_.num_connected(rank));
    }
    counts_.backed_bytes = *std::ranges::max_element(backed_);
  }

  void kill_victim() {
    counts_.private_rank_0 = allocated_bytes(0);
    for (int rank = 1; rank < num_ranks_; ++rank) {
      if (!coordinates(rank))
        counts_.private_others = std::max(counts_.private_others, allocated_bytes(rank));
    }
    victim_died_ = true;
    simulation_.kill(victim_);
    network_.kill(victim_);
    kernel_.kill(victim_);
  }

  void count_layout() {
    const ExchangeConfig complete = internal::complete_config(scenario_.config, num_ranks_);
    const Topology topology = Topology::parse(shape_.topology);
    const internal::Setup setup(complete, topology, 0, {complete.algorithm, ""});
    const auto ranks = static_cast<std::int64_t>(num_ranks_);
    counts_.segment_bytes = static_cast<std::int64_t>(setup.layout.segment_bytes());
    counts_.control_bytes = ranks * static_cast<std::int64_t>(setup.layout.control_bytes());
    const std::int64_t columns = setup.rules().count_row_size(setup.everybody->map);
    const bool shares = internal::shares_sums(complete, setup.everybody->map);
    counts_.count_entries = ranks * columns / (shares ? ranks / topology.num_nodes() : 1);
  }

  const Shape& shape_;
  const Scenario scenario_;
  const int num_ranks_, victim_;
  OrdinaryChoices choices_;
  Machine machine_;
  Simulation simulation_;
  Network network_;
  Kernel kernel_;
  ScaleCounts counts_;
  std::vector<RankSent> sent_;        // [ranks] in this step
  std::vector<std::int64_t> backed_;  // [ranks]
  std::int64_t began_ns_ = 0;
  int arrived_ = 0, num_steps_ = 0;
  bool victim_died_ = false;
};

}  // namespace

void Sent::add(std::size_t more_bytes) {
  ++messages;
  bytes += static_cast<std::int64_t>(more_bytes);
}

int Shape::num_ranks() const { return Topology::parse(topology).num_ranks(); }
int Shape::num_hosts() const { return Topology::parse(topology).num_nodes(); }

ScaleCounts count(const Shape& shape) { return CountedRun(shape).play(); }

}  // namespace ferry::test
