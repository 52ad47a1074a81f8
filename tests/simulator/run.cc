#include "simulator/run.h"

#include <array>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "bootstrap/rendezvous.h"
#include "exchange/player.h"
#include "exchange/setup/configuration.h"
#include "exchange/setup/record.h"
#include "exchange/setup/setup.h"
#include "group/state.h"
#include "simulator/flag_watch.h"
#include "simulator/kernel.h"
#include "simulator/machine.h"
#include "simulator/network.h"

namespace ferry::test {

namespace {

constexpr int kSlowFactor = 10;
constexpr std::int64_t kStoppedNs = 150'000'000, kOutageNs = 200'000'000,
                       kForGoodNs = 8'000'000'000;
constexpr int kRefusalRarity = 12, kComputeRarity = 4, kStayRarity = 4;
constexpr std::int64_t kStayNs = 6'000'000'000;  // longer than any deadline
constexpr std::array<std::int64_t, 4> kComputeNs = {0, 50'000, 2'000'000, 60'000'000};
constexpr std::int64_t kStrangeNs = 400'000;
constexpr std::array<std::int64_t, 4> kStartsNs = {0, 300'000, 20'000'000, 100'000'000};
constexpr int kStartRarity = 4;
constexpr int kPort = 4711;
constexpr std::size_t kMoreDescriptors = 4;
// What a call may take beyond its deadline: the time to see whether a rank ends (kEndsSoon in
// wait.cc), and the time for which a rank that runs may lose the processor.
constexpr std::int64_t kGraceNs = 900'000'000;
// Without a fault no call waits for a timer. The shortest timer is kAbsentWait in protocol.cc, 1 s.
constexpr std::int64_t kPromptNs = 900'000'000;
// What leaving a group may take: kLinger of between_nodes.cc, kClosingTime of message_channel.cc
// and the same grace.
constexpr std::int64_t kLeavingNs = 2'100'000'000 + kGraceNs;

// A call ended with an error.
class CallFailed : public std::exception {
 public:
  explicit CallFailed(Status status) : status(std::move(status)) {}
  Status status;
};

// An exception of a rank that is not an error of ferry.
struct Raised {};

class Run {
 public:
  Run(const Case& drawn, Choices& choices, bool trace)
      : case_(drawn),
        scenario_(drawn.scenario),
        simulation_(choices, trace),
        network_(simulation_, drawn.nodes()),
        kernel_(simulation_, network_, drawn.hosts()),
        num_ranks_(scenario_.num_ranks) {
    outcome_.ranks.resize(static_cast<std::size_t>(num_ranks_));
    if (drawn.fault == Fault::kNoMemory) machine_.refuses_memory = [this] { return refuse(); };
  }

  Outcome play() {
    for (int rank = 0; rank < num_ranks_; ++rank) simulation_.add_rank([this, rank] { be(rank); });
    simulation_.after_step([this](int rank) { look(rank); });
    if (case_.fault == Fault::kSlow) strike();
    if (case_.strangers) be_strange();
    const bool ended = simulation_.run();
    if (!ended) outcome_.wrong.emplace_back("the run did not end");
    const std::size_t num_left =
        machine_.mappings.size() + network_.num_transports() + kernel_.num_open();
    if (ended && num_left > 0)
      outcome_.wrong.push_back(
          fmt::format("left behind: {} segments, {} transports, {} descriptors",
                      machine_.mappings.size(), network_.num_transports(), kernel_.num_open()));
    outcome_.digest = simulation_.digest();
    outcome_.steps = simulation_.steps();
    for (int rank = 0; rank < num_ranks_; ++rank) {
      if (simulation_.dead(rank)) outcome_.ranks[static_cast<std::size_t>(rank)] = {};
    }
    judge(case_, outcome_);
    return outcome_;
  }

 private:
  // ---- a rank

  void be(int rank) {
    RankOutcome& mine = outcome_.ranks[static_cast<std::size_t>(rank)];
    std::int64_t left_ns = simulation_.time_ns();
    try {
      take_part(rank, left_ns);
    } catch (const Raised&) {
      mine.raised = true;
    } catch (const CallFailed& failed) {
      mine.status = failed.status;
    } catch (const Error& error) {
      mine.status = Status(error.code(), error.what(), error.culprit());
    } catch (const std::exception& failure) {
      mine.wrong = failure.what();
    }
    simulation_.note("has left", static_cast<std::uint64_t>(mine.status.code()),
                     static_cast<std::uint64_t>(mine.status.culprit()));
    if (mine.told_ns == 0) mine.told_ns = simulation_.time_ns();
    if (took_too_long(rank, left_ns, kLeavingNs)) mine.wrong += " leaving took too long";
  }

  // `told_ns`: when the last call of this rank returned.
  void take_part(int rank, std::int64_t& told_ns) {
    GroupOptions options;
    options.deadline = case_.deadline;
    options.topology = scenario_.nodes.topology;
    come(told_ns);
    const Group group = join(rank, options, told_ns);
    check(rank, told_ns, {}, "joining");
    outcome_.ranks[static_cast<std::size_t>(rank)].joined = true;
    watch_group(rank);
    for (int left = case_.num_exchanges - 1; left >= 0; --left)
      play_exchange(group, told_ns, left == 0);
  }

  // The ranks are not started at the same time.
  void come(std::int64_t& told_ns) {
    if (simulation_.enumerates()) return;
    const int late = simulation_.choose(kStartsNs.size(), kStartRarity);
    if (late > 0) simulation_.sleep(nullptr, kStartsNs[static_cast<std::size_t>(late)]);
    told_ns = simulation_.time_ns();
  }

  Group join(int rank, const GroupOptions& options, std::int64_t& told_ns) {
    const auto by = internal::Deadline::after(options.deadline);
    try {
      return internal::GroupState::join(meet(rank, by), options, {"simulation", "a test"}, by,
                                        internal::ucx_transport);
    } catch (const Error& error) {
      check(rank, told_ns, {error.code(), error.what(), error.culprit()}, "joining");
      throw;
    }
  }

  std::unique_ptr<internal::Rendezvous> meet(int rank, const internal::Deadline& by) {
    if (case_.one_host())
      return internal::process_rendezvous("a simulation", rank, case_.nodes(), by);
    internal::TcpEndpoint endpoint{.address = {{"10.77.0.1"}, kPort},
                                   .secret = "the secret of a simulation",
                                   .group = "a simulation",
                                   .interfaces = "",
                                   .listener = nullptr};
    return internal::tcp_rendezvous(endpoint, rank, case_.nodes(), by);
  }

  void play_exchange(const Group& group, std::int64_t& told_ns, bool last) {
    const int rank = group.rank();
    std::optional<Exchange> exchange;
    try {
      exchange.emplace(group, scenario_.config);
    } catch (const Error& error) {  // told while the group is there: leaving it takes a while
      check(rank, told_ns, {error.code(), error.what(), error.culprit()}, "making the exchange");
    }
    check(rank, told_ns, {}, "making the exchange");
    watch_exchange(rank, group.topology());
    play_scenario(*exchange, rank, told_ns);
    // This rank may stay away after its calls; the others must end without it, since it owes them
    // nothing.
    if (last && !simulation_.enumerates() && simulation_.choose(2, kStayRarity) > 0) {
      stays_away_ = true;
      simulation_.sleep(nullptr, kStayNs);
    }
    told_ns = simulation_.time_ns();
  }

  void play_scenario(Exchange& exchange, int rank, std::int64_t& told_ns) {
    const auto told = [this, rank, &told_ns](const Status& status, const std::string& what) {
      check(rank, told_ns, status, what);
    };
    ferry::test::play(exchange, rank, scenario_,
                      {.halves = case_.halves, .delays = false, .check = told});
  }

  bool took_too_long(int rank, std::int64_t since_ns, std::int64_t most_ns) const {
    if (simulation_.dead(rank)) return false;
    return simulation_.time_ns() - since_ns > most_ns + simulation_.stopped_ns(rank);
  }

  void check(int rank, std::int64_t& told_ns, const Status& status, const std::string& what) {
    const std::int64_t most_ns = std::chrono::nanoseconds(case_.deadline).count() + kGraceNs;
    if (took_too_long(rank, told_ns, most_ns)) throw Failure(what + " took too long");
    const bool prompt = case_.fault == Fault::kNone && !scenario_.silent && !stays_away_;
    if (prompt && took_too_long(rank, told_ns, kPromptNs))
      throw Failure(what + " waited for a timer");
    simulation_.note("returns", static_cast<std::uint64_t>(status.code()),
                     static_cast<std::uint64_t>(status.culprit()));
    told_ns = simulation_.time_ns();
    if (raises_ && rank == case_.victim) {
      outcome_.fault_ns = told_ns;
      throw Raised();
    }
    if (status.ok()) return compute(told_ns);
    outcome_.ranks[static_cast<std::size_t>(rank)].told_ns = told_ns;
    throw CallFailed({status.code(), what + ": " + status.message(), status.culprit()});
  }

  // The rank does something else than call ferry, and moves no messages.
  void compute(std::int64_t& told_ns) {
    if (simulation_.enumerates()) return;
    const int kind = simulation_.choose(kComputeNs.size(), kComputeRarity);
    if (kind > 0) simulation_.sleep(nullptr, kComputeNs[static_cast<std::size_t>(kind)]);
    told_ns = simulation_.time_ns();
  }

  // ---- flags

  bool first_of_node(int rank) const {
    return rank == 0 || case_.nodes()[rank] != case_.nodes()[rank - 1];
  }

  void watch_group(int rank) {
    if (!first_of_node(rank)) return;
    watch_.add_group(machine_.last_mapped(rank), num_ranks_);
  }

  void watch_exchange(int rank, const Topology& topology) {
    if (!first_of_node(rank)) return;
    const internal::Setup setup(internal::complete_config(scenario_.config, num_ranks_), topology,
                                rank, {scenario_.config.algorithm, ""});
    watch_.add_exchange(machine_.last_mapped(rank), setup.layout, num_ranks_);
  }

  // ---- what happens to them

  void look(int rank) {
    if (watch_.look(outcome_.wrong, rank)) simulation_.progressed();
    if (outcome_.fault_ns == 0 && rank == case_.victim && !simulation_.ended(rank) && due())
      strike();
  }

  bool due() {
    if (case_.turns >= 0) return turns_++ >= case_.turns;
    const bool same = seen_version_ == simulation_.version();
    seen_version_ = simulation_.version();
    return !same && simulation_.choose(2, 1) > 0;
  }

  void strike() {
    const std::int64_t now = simulation_.time_ns();
    const int node = case_.nodes()[static_cast<std::size_t>(case_.victim)];
    if (case_.fault == Fault::kNone || case_.fault == Fault::kNoMemory) return;
    outcome_.fault_ns = now;
    // Ranks of several hosts meet on each host only after all ranks have come.
    outcome_.victim_had_come = outcome_.ranks[static_cast<std::size_t>(case_.victim)].joined ||
                               (!case_.one_host() && kernel_.meets_on_a_host());
    switch (case_.fault) {
      case Fault::kSlow: return simulation_.slow_down(case_.victim, kSlowFactor);
      case Fault::kPause: return simulation_.stop(case_.victim, now + kStoppedNs);
      case Fault::kStop: return simulation_.stop(case_.victim, now + kForGoodNs);
      case Fault::kOutage: return network_.part(node, now + kOutageNs);
      case Fault::kPartition: return network_.part(node, now + 100 * kForGoodNs);
      case Fault::kNoDescriptors:
        return kernel_.leave_descriptors(case_.victim, simulation_.choose(kMoreDescriptors, 2));
      case Fault::kCut: return cut();
      case Fault::kRaise: raises_ = true; return;
      default: break;
    }
    simulation_.kill(case_.victim);
    network_.kill(case_.victim);
    kernel_.kill(case_.victim);
  }

  void cut() {
    network_.cut(case_.victim, case_.peer);
    kernel_.cut(case_.victim, case_.peer);
  }

  bool refuse() {
    const bool refused = simulation_.choose(2, kRefusalRarity) > 0;
    if (!refused) return false;
    simulation_.note("is refused memory");
    if (outcome_.fault_ns == 0) outcome_.fault_ns = simulation_.time_ns();
    return true;
  }

  void be_strange() {
    const int to = simulation_.choose(static_cast<std::size_t>(num_ranks_), 2);
    network_.send_strange(to);
    kernel_.be_strange();
    simulation_.at(simulation_.time_ns() + kStrangeNs, [this] { be_strange(); });
  }

  const Case& case_;
  const Scenario& scenario_;
  Machine machine_;
  Simulation simulation_;
  Network network_;
  Kernel kernel_;
  const int num_ranks_;
  FlagWatch watch_;
  Outcome outcome_;
  int turns_ = 0;
  bool raises_ = false;      // the victim throws when its call returns
  bool stays_away_ = false;  // some rank; it moves no messages for others
  std::uint64_t seen_version_ = 0;
};

}  // namespace

Outcome run_case(const Case& drawn, Choices& choices, bool trace) {
  return Run(drawn, choices, trace).play();
}

Outcome run_case(const Case& drawn, bool trace) {
  RandomChoices choices(drawn.scenario.seed);
  return run_case(drawn, choices, trace);
}

}  // namespace ferry::test
