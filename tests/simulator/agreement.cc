#include "simulator/agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "bootstrap/rendezvous.h"
#include "exchange/setup/configuration.h"
#include "exchange/setup/setup.h"
#include "exchange/view_rounds.h"
#include "group/state.h"
#include "simulator/call_times.h"
#include "simulator/flag_watch.h"
#include "simulator/kernel.h"
#include "simulator/machine.h"
#include "simulator/network.h"
#include "simulator/views.h"

namespace ferry::test {

namespace {

constexpr int kMeetingPort = 4711;

// [ranks] on which host each is.
std::vector<int> hosts_of(const AgreementCase& drawn) {
  return drawn.one_host ? std::vector<int>(drawn.nodes.of_rank.size()) : drawn.nodes.of_rank;
}

class AgreementRun {
 public:
  AgreementRun(const AgreementCase& drawn, Choices& choices, bool trace)
      : case_(drawn),
        scenario_(scenario_of_sets(drawn.nodes, drawn.config, drawn.seed)),
        simulation_(choices, trace),
        network_(simulation_, drawn.nodes.of_rank),
        kernel_(simulation_, network_, hosts_of(drawn)),
        blows_(drawn.blows),
        ranks_(drawn.nodes.of_rank.size()),
        times_(simulation_, {drawn.num_ranks(), drawn.deadline, may_be_late(), "rank"},
               [this](const std::string& what) { complain(what); }) {}

  AgreementOutcome play() {
    for (int rank = 0; rank < case_.num_ranks(); ++rank)
      simulation_.add_rank([this, rank] { be(rank); });
    simulation_.after_step([this](int rank) { look(rank); });
    const bool ended = simulation_.run();
    if (!ended) complain("the run did not end");
    const std::size_t num_left =
        machine_.mappings.size() + network_.num_transports() + kernel_.num_open();
    if (ended && num_left > 0)
      complain(fmt::format("left behind: {} segments, {} transports, {} descriptors",
                           machine_.mappings.size(), network_.num_transports(),
                           kernel_.num_open()));
    std::uint64_t number = 1;
    for (const auto& [begun, members] : views_)
      if (begun != ++number) complain(fmt::format("view {} was left out", number));
    outcome_.num_views = static_cast<int>(views_.size()) + 1;
    // Each rank ends at most one view by its end, and others by survive(). A view may begin before
    // all have seen that a link is lost.
    const int most = 1 + case_.num_ranks() + num_surviving_ + 2 * std::ssize(case_.blows);
    if (outcome_.num_views > most && !may_be_late())
      complain(fmt::format("{} views without a reason", outcome_.num_views));
    outcome_.digest = simulation_.digest();
    outcome_.steps = simulation_.steps();
    return outcome_;
  }

 private:
  static constexpr std::int64_t kStoppedNs = 150'000'000, kForGoodNs = 6'000'000'000,
                                kOutageNs = 100'000'000;
  static constexpr int kWhimRarity = 6, kMostCalls = 100, kMostLate = 3, kStayRarity = 2;
  static constexpr std::int64_t kStayNs = 6'000'000'000;  // longer than any deadline

  struct Raised {};
  struct Rank {
    bool gone = false, raises = false, in_survive = false;
  };

  void complain(const std::string& what) { outcome_.wrong.push_back(what); }
  Rank& mine() { return ranks_[simulation_.running()]; }
  bool dead() const { return simulation_.dead(simulation_.running()); }
  bool lost(int rank) const { return simulation_.dead(rank) || ranks_[rank].gone; }
  // Those that can reach each other are the parts of a group that is cut into two.
  bool has_two_parts() const {
    const auto is_cut = [](const auto& blow) { return blow.fault == Fault::kCut; };
    const auto cuts = std::ranges::count_if(case_.blows, is_cut);
    if (cuts == 0) return true;
    const AgreementCase::Blow& blow = *std::ranges::find_if(case_.blows, is_cut);
    return cuts == 1 && (blow.part | blow.other) == (2 << case_.nodes.of_rank.back()) - 1;
  }
  bool is_cut(int rank, int peer) const { return cut_.contains(std::minmax(rank, peer)); }
  // Ranks may wait for others until their deadlines.
  bool may_be_late() const { return case_.has(Fault::kStop) || case_.has(Fault::kPartition); }

  // ---- a rank

  void be(int rank) {
    try {
      times_.begin();
      Group group = join(rank);
      watch_group(rank);
      live(group);
    } catch (const Raised&) {
    } catch (const Error& error) {  // of the join
      check_refused(rank, error);
    } catch (const std::exception& failure) {
      if (!dead()) complain(fmt::format("rank {}: {}", rank, failure.what()));
    }
    mine().gone = true;
  }

  Group join(int rank) {
    const GroupOptions options{.deadline = case_.deadline, .topology = case_.nodes.topology};
    const auto by = internal::Deadline::after(options.deadline);
    return internal::GroupState::join(meet(rank, by), options, {"simulation", "a test"}, by,
                                      [this, rank] { return network_.transport(rank); });
  }

  std::unique_ptr<internal::Rendezvous> meet(int rank, const internal::Deadline& by) const {
    if (case_.one_host)
      return internal::process_rendezvous("a simulation", rank, case_.nodes.of_rank, by);
    internal::TcpEndpoint endpoint{.address = {{"127.0.0.1"}, kMeetingPort},
                                   .secret = "the secret of a simulation",
                                   .group = "a simulation",
                                   .interfaces = "",
                                   .listener = nullptr};
    return internal::tcp_rendezvous(endpoint, rank, case_.nodes.of_rank, by);
  }

  void check_refused(int rank, const Error& error) {
    if (dead()) return;
    times_.check("joining", case_.deadline);
    if (blows_.size() == case_.blows.size() && !whims_)
      complain(fmt::format("rank {}: an error without a fault: {}", rank, error.what()));
  }

  void live(Group& group) {
    std::unique_ptr<Seat> seat;
    try {
      seat = std::make_unique<Seat>(group, scenario_);
    } catch (const Error& error) {  // told while the group is there: leaving it takes a while
      mine().gone = true;
      return check_refused(group.rank(), error);
    }
    watch_exchange(group);
    called(group, "making an exchange", case_.deadline);
    for (int calls = 0; !dead(); ++calls) {
      require(calls < kMostCalls, "the views did not end");
      const std::optional<Status> ended = play_in_view(group, *seat);
      if (!ended || dead()) break;
      check_error(group, *ended);
      if (!go_on(group)) break;
    }
    mine().gone = true;
  }

  // The status with which the view ended; none: this rank leaves.
  std::optional<Status> play_in_view(Group& group, Seat& seat) {
    for (int round = 0; round < case_.num_rounds && !dead(); ++round) {
      switch (static_cast<Whim>(simulation_.choose(3, kWhimRarity))) {
        case Whim::kLeave: whims_ = true; return {};
        case Whim::kSurvive:
          whims_ = true;
          ++num_surviving_;
          return Status(Code::kBroken, "a whim");
        default: break;
      }
      Status status = play_view(group, seat);
      called(group, "an operation");
      if (!status.ok()) return status;
      ++outcome_.num_rounds;
    }
    return {};
  }

  // False: this rank ends.
  bool go_on(Group& group) {
    const View before = group.view();
    for (int late = 0; !dead(); ++late) {
      mine().in_survive = true;
      const Status status = group.survive();
      mine().in_survive = false;
      called(group, "survive");
      if (dead()) return false;
      if (status.ok()) break;
      if (status.code() != Code::kTimeout) return check_end(group, status), false;
      require(may_be_late(), "survive: " + status.message());
      ++outcome_.num_late;
      if (late == kMostLate) return false;
    }
    if (!dead()) check_view(group, before);
    return !dead();
  }

  // This rank cannot go on: its part has too few votes, or the others have gone on without it.
  void check_end(const Group& group, const Status& status) {
    const int me = group.rank();
    if (status.code() == Code::kClosed) {
      require(!cut_.empty(), "a rank is left behind: " + status.message());
      ++outcome_.num_left_behind;
      return;
    }
    require(status.code() == Code::kPeerLost, "survive: " + status.message());
    require(lost(status.culprit()) || is_cut(me, status.culprit()) || !has_two_parts(),
            "a rank that can be reached is called lost: " + status.message());
    std::set<int> reached;
    for (const int rank : group.view().members)
      if (!lost(rank) && !is_cut(me, rank)) reached.insert(case_.nodes.of_rank[rank]);
    require(!is_enough(group.view(), reached) || !has_two_parts(),
            "a part that may go on is refused: " + status.message());
    ++outcome_.num_refused;
    // Where others reach the part that went on only through this rank, they wait for it.
    if (has_two_parts() && simulation_.choose(2, kStayRarity) > 0)
      simulation_.sleep(nullptr, kStayNs);
  }

  // Whether these nodes may begin the view that follows `view`.
  bool is_enough(const View& view, const std::set<int>& nodes) const {
    const auto votes = std::ranges::count_if(
        view.members, [&](int rank) { return nodes.contains(case_.nodes.of_rank[rank]); });
    return 2 * votes > std::ssize(view.members) ||
           (2 * votes == std::ssize(view.members) &&
            nodes.contains(case_.nodes.of_rank[view.members[0]]));
  }

  // The next view has begun.
  void check_view(const Group& group, const View& before) {
    const View& view = group.view();
    require(view.number == before.number + 1,
            fmt::format("view {} follows view {}", view.number, before.number));
    const auto [known, fresh] = views_.emplace(view.number, view.members);
    require(known->second == view.members,
            fmt::format("view {} has ranks {} and ranks {}", view.number,
                        fmt::join(known->second, ", "), fmt::join(view.members, ", ")));
    require(std::ranges::includes(before.members, view.members),
            fmt::format("view {} has ranks that view {} lacked", view.number, before.number));
    std::set<int> nodes;
    for (const int rank : view.members) nodes.insert(case_.nodes.of_rank[rank]);
    require(is_enough(before, nodes),
            fmt::format("view {} begins with ranks {} of ranks {}", view.number,
                        fmt::join(view.members, ", "), fmt::join(before.members, ", ")));
    for (const int rank : before.members)
      require(std::ranges::count(view.members, rank) > 0 || lost(rank) || !cut_.empty(),
              fmt::format("view {} lacks rank {}, which lives", view.number, rank));
  }

  void check_error(const Group& group, const Status& status) {
    const bool late = status.code() == Code::kTimeout && may_be_late();
    const bool over = status.code() == Code::kPeerLost || status.code() == Code::kBroken;
    require(late || over, status.message());
    const bool names = status.culprit() >= 0 && status.culprit() < group.size();
    require(names || status.code() == Code::kBroken || may_be_late(),
            "nobody is named: " + status.message());
    if (status.code() != Code::kPeerLost) return;
    require(may_be_late() || lost(status.culprit()) || !cut_.empty(),
            "a rank that lives is called lost: " + status.message());
  }

  // `waits`: for so long a call may wait where nothing is wrong.
  void called(const Group& group, const std::string& what, std::chrono::nanoseconds waits = {}) {
    if (dead()) return;
    times_.end(what, group.view().number, waits);
    if (mine().raises) {
      mine().gone = true;
      throw Raised();
    }
    times_.compute();
  }

  // ---- flags

  bool first_of_node(int rank) const {
    return rank == 0 || case_.nodes.of_rank[rank] != case_.nodes.of_rank[rank - 1];
  }

  void watch_group(int rank) {
    if (first_of_node(rank)) watch_.add_group(machine_.last_mapped(rank), case_.num_ranks());
  }

  void watch_exchange(const Group& group) {
    if (!first_of_node(group.rank())) return;
    const internal::Setup setup(internal::complete_config(scenario_.config, case_.num_ranks()),
                                group.topology(), group.rank(), {scenario_.config.algorithm, ""});
    watch_.add_exchange(machine_.last_mapped(group.rank()), setup.layout, case_.num_ranks());
  }

  // ---- what happens to them

  void look(int rank) {
    if (simulation_.dead(rank)) return;  // it goes on to its end
    if (watch_.look(outcome_.wrong, rank)) simulation_.progressed();
    const auto counts = [&](const AgreementCase::Blow& blow) {
      return blow.rank == rank && (!blow.in_survive || ranks_[rank].in_survive);
    };
    const auto due = std::ranges::find_if(
        blows_, [&](const AgreementCase::Blow& blow) { return counts(blow) && blow.turns <= 0; });
    for (AgreementCase::Blow& blow : blows_) blow.turns -= counts(blow) ? 1 : 0;
    if (due == blows_.end() || simulation_.ended(rank)) return;
    const AgreementCase::Blow blow = *due;
    blows_.erase(due);
    strike(blow);
  }

  void strike(const AgreementCase::Blow& blow) {
    const std::int64_t now = simulation_.time_ns();
    const int node = case_.nodes.of_rank[blow.rank];
    switch (blow.fault) {
      case Fault::kPause: return simulation_.stop(blow.rank, now + kStoppedNs);
      case Fault::kStop: return simulation_.stop(blow.rank, now + kForGoodNs);
      case Fault::kOutage: return network_.part(node, now + kOutageNs);
      case Fault::kPartition: return network_.part(node, now + 100 * kForGoodNs);
      case Fault::kCut: return cut(blow.part, blow.other);
      case Fault::kRaise: ranks_[blow.rank].raises = true; return;
      default: break;
    }
    simulation_.kill(blow.rank);
    network_.kill(blow.rank);
    kernel_.kill(blow.rank);
  }

  void cut(int part, int other) {
    const std::vector<int>& nodes = case_.nodes.of_rank;
    for (int rank = 0; rank < case_.num_ranks(); ++rank) {
      for (int peer = 0; peer < case_.num_ranks(); ++peer) {
        if (!(part >> nodes[rank] & 1) || !(other >> nodes[peer] & 1)) continue;
        if (!cut_.insert(std::minmax(rank, peer)).second) continue;
        network_.cut(rank, peer);
        kernel_.cut(rank, peer);
      }
    }
  }

  const AgreementCase& case_;
  const Scenario scenario_;
  Machine machine_;
  Simulation simulation_;
  Network network_;
  Kernel kernel_;
  std::vector<AgreementCase::Blow> blows_;  // those to come
  std::vector<Rank> ranks_;
  CallTimes times_;
  std::map<std::uint64_t, std::vector<int>> views_;  // that have begun, from the second on
  std::set<std::pair<int, int>> cut_;                // links that are lost, the lower rank first
  int num_surviving_ = 0;                            // ranks that ended a view by a whim
  bool whims_ = false;                               // some rank has left or ended a view
  FlagWatch watch_;
  AgreementOutcome outcome_;
};

constexpr std::array kBlowsBetweenNodes = {
    Fault::kDeath, Fault::kDeath, Fault::kDeath, Fault::kDeath, Fault::kRaise,  Fault::kPause,
    Fault::kStop,  Fault::kCut,   Fault::kCut,   Fault::kCut,   Fault::kOutage, Fault::kPartition};

}  // namespace

bool AgreementCase::has(Fault fault) const {
  return std::ranges::any_of(blows, [fault](const Blow& blow) { return blow.fault == fault; });
}

std::string AgreementCase::describe() const {
  std::string text =
      fmt::format("{}{}, {} rounds", nodes.topology, one_host ? ", one host" : "", num_rounds);
  for (const Blow& blow : blows) {
    text += fmt::format(", {} of rank {} after {} turns{}", name_of(blow.fault), blow.rank,
                        blow.turns, blow.in_survive ? " in survive()" : "");
    if (blow.fault == Fault::kCut)
      text += fmt::format(" (nodes {:b} and {:b})", blow.part, blow.other);
  }
  return text;
}

namespace {

// All links between two parts, or those between two nodes.
void draw_cut(AgreementCase::Blow& blow, int num_nodes, Random& random) {
  const int all = (1 << num_nodes) - 1;
  blow.part = static_cast<int>(random.between(1, all - 1));
  blow.other = all & ~blow.part;
  if (num_nodes == 2 || !random.one_in(3)) return;
  const int one = static_cast<int>(random.below(num_nodes));
  blow.part = 1 << one;
  blow.other = 1 << (one + random.between(1, num_nodes - 1)) % num_nodes;
}

}  // namespace

AgreementCase draw_agreement(std::uint64_t seed) {
  constexpr std::array kMostTurns = {20, 100, 300, 1000};
  constexpr std::array kMostTurnsInSurvive = {4, 12, 40, 120};
  constexpr int kMostRanks = 6;
  Random random(seed, 6005);
  std::vector<int> sizes;
  int num_ranks = 0;
  for (std::int64_t left = random.between(2, 4); left > 0; --left) {
    const int most = std::min<int>(4, kMostRanks - num_ranks - static_cast<int>(left) + 1);
    sizes.push_back(static_cast<int>(random.between(1, most)));
    num_ranks += sizes.back();
  }
  AgreementCase drawn{.seed = seed, .nodes = nodes_of_sizes(sizes), .one_host = random.one_in(2)};
  drawn.config = {.max_tokens = random.between(1, 4),
                  .hidden = random.between(1, 12),
                  .num_experts = 2 * num_ranks,
                  .top_k = static_cast<int>(random.between(1, 3)),
                  .dtype = random.pick(std::array{DataType::kBf16, DataType::kFp32}),
                  .depth = static_cast<int>(random.between(1, 3))};
  for (std::int64_t left = random.between(1, 4); left > 0; --left) {
    AgreementCase::Blow blow{.fault = random.pick(kBlowsBetweenNodes),
                             .rank = static_cast<int>(random.below(num_ranks)),
                             .turns = static_cast<int>(random.below(random.pick(kMostTurns))),
                             .in_survive = random.one_in(2)};
    if (blow.in_survive)
      blow.turns = static_cast<int>(random.below(random.pick(kMostTurnsInSurvive)));
    if (blow.fault == Fault::kCut) draw_cut(blow, static_cast<int>(sizes.size()), random);
    drawn.blows.push_back(blow);
  }
  drawn.num_rounds = static_cast<int>(random.between(1, 5));
  if (drawn.has(Fault::kStop) || drawn.has(Fault::kPartition))
    drawn.deadline = std::chrono::milliseconds(400);
  return drawn;
}

AgreementOutcome run_agreement(const AgreementCase& drawn, bool trace) {
  RandomChoices choices(drawn.seed);
  return AgreementRun(drawn, choices, trace).play();
}

}  // namespace ferry::test
