#include "simulator/agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "base/bytes.h"
#include "exchange/setup/configuration.h"
#include "exchange/setup/setup.h"
#include "exchange/view_rounds.h"
#include "group/agreement_message.h"
#include "group/state.h"
#include "simulator/call_times.h"
#include "simulator/flag_watch.h"
#include "simulator/kernel.h"
#include "simulator/machine.h"
#include "simulator/network.h"
#include "simulator/views.h"

namespace ferry::test {

namespace {

// [ranks] on which host each is.
std::vector<int> hosts_of(const AgreementCase& drawn) {
  return drawn.one_host ? std::vector<int>(drawn.nodes.of_rank.size()) : drawn.nodes.of_rank;
}

class AgreementRun {
 public:
  AgreementRun(const AgreementCase& drawn, Choices& choices, bool trace)
      : case_(drawn),
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
    network_.on_send = [this](int from, auto /*head*/, auto body) { look_at_message(from, body); };
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
    // A rank ends at most one view by its own end, and others by calling survive(). A view may
    // begin before all its ranks have seen that a link is lost, and then ends soon.
    const int most = 1 + case_.num_ranks() + num_surviving_ + 2 * std::ssize(case_.blows);
    if (outcome_.num_views > most && !may_be_late())
      complain(fmt::format("{} views without a reason", outcome_.num_views));
    check_refused_part();
    outcome_.digest = simulation_.digest();
    outcome_.steps = simulation_.steps();
    return outcome_;
  }

 private:
  static constexpr std::int64_t kStoppedNs = 150'000'000, kForGoodNs = 6'000'000'000,
                                kOutageNs = 100'000'000;
  // When a link is lost one way: how much later the other end learns it. And how long nothing
  // crosses a link before both ends learn that it is lost.
  static constexpr std::int64_t kLaterNs = 300'000'000, kSilentNs = 600'000'000;
  static constexpr int kWhimRarity = 6, kMostCalls = 100, kMostLate = 3, kStayRarity = 2;
  static constexpr std::int64_t kStayNs = 6'000'000'000;  // longer than any deadline

  struct Raised {};
  struct Rank {
    bool gone = false, raises = false, in_survive = false;
    std::uint64_t refused_in = 0;  // the view in which survive() refused this rank's part
  };

  void complain(const std::string& what) { outcome_.wrong.push_back(what); }
  Rank& mine() { return ranks_[simulation_.running()]; }
  bool dead() const { return simulation_.dead(simulation_.running()); }
  bool lost(int rank) const { return simulation_.dead(rank) || ranks_[rank].gone; }
  // Whether the lost links cut the group into two parts at most, in each of which all ranks reach
  // each other.
  bool has_two_parts() const {
    if (case_.loses_a_link()) return false;
    const auto is_cut = [](const auto& blow) { return blow.fault == Fault::kCut; };
    const auto cuts = std::ranges::count_if(case_.blows, is_cut);
    if (cuts == 0) return true;
    const AgreementCase::Blow& blow = *std::ranges::find_if(case_.blows, is_cut);
    return cuts == 1 && (blow.part | blow.other) == (2 << case_.nodes.of_rank.back()) - 1;
  }
  bool is_cut(int rank, int peer) const { return cut_.contains(std::minmax(rank, peer)); }
  // Ranks may wait for others until their deadlines.
  bool may_be_late() const { return case_.has(Fault::kStop) || case_.has(Fault::kPartition); }

  // No nodes that were all refused in the last view could have gone on together: nodes without a
  // lost link between them that have enough votes.
  void check_refused_part() {
    if (!case_.loses_a_link() || case_.has(Fault::kStop)) return;
    View last{.number = 1};
    for (int rank = 0; rank < case_.num_ranks(); ++rank) last.members.push_back(rank);
    if (!views_.empty()) last = {views_.rbegin()->first, views_.rbegin()->second};
    std::set<int> refused;
    for (const int rank : last.members)
      if (ranks_[rank].refused_in == last.number) refused.insert(case_.nodes.of_rank[rank]);
    // A rank that was refused was alive then, even if it is dead now.
    const auto was_dead = [&](int rank) {
      return simulation_.dead(rank) && ranks_[rank].refused_in != last.number;
    };
    const auto joined = [&](int set) {
      for (const int rank : last.members)
        for (const int peer : last.members)
          if (set >> case_.nodes.of_rank[rank] & 1 && set >> case_.nodes.of_rank[peer] & 1 &&
              is_cut(rank, peer) && !was_dead(rank) && !was_dead(peer))
            return false;
      return true;
    };
    for (int set = 1; set < 2 << case_.nodes.of_rank.back(); ++set) {
      std::set<int> nodes;
      for (int node = 0; node <= case_.nodes.of_rank.back(); ++node)
        if (set >> node & 1) nodes.insert(node);
      if (std::ranges::includes(refused, nodes) && joined(set) &&
          is_enough(case_.nodes, last, nodes))
        return complain(fmt::format("nodes {} could have gone on", fmt::join(nodes, ", ")));
    }
  }

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

  Group join(int rank) const {
    return Group::connect(case_.one_host ? "a simulation" : "tcp://10.77.0.1:4711", rank,
                          case_.num_ranks(),
                          {.deadline = case_.deadline, .topology = case_.nodes.topology});
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
      seat = std::make_unique<Seat>(group, scenario_of(group.view()));
    } catch (const Error& error) {  // told while the group is there: leaving it takes a while
      mine().gone = true;
      return check_refused(group.rank(), error);
    }
    watch_exchange(group, scenario_of(group.view()));
    called(group, "making an exchange", case_.deadline);
    for (int calls = 0; !dead(); ++calls) {
      require(calls < kMostCalls, "the views did not end");
      const std::optional<Status> ended = play_in_view(group, seat);
      if (!ended || dead()) break;
      check_error(group, *ended);
      if (!go_on(group)) break;
    }
    mine().gone = true;
  }

  // The status with which the view ended; none: this rank leaves.
  std::optional<Status> play_in_view(Group& group, std::unique_ptr<Seat>& seat) {
    if (case_.remakes && group.view().number > 1)
      if (Status status = make_exchange(group, seat); !status.ok() || dead()) return status;
    for (int round = 0; round < case_.num_rounds && !dead(); ++round) {
      const int whim = case_.whims ? simulation_.choose(3, kWhimRarity) : 0;
      switch (static_cast<Whim>(whim)) {
        case Whim::kLeave: whims_ = true; return {};
        case Whim::kSurvive:
          whims_ = true;
          ++num_surviving_;
          return Status(Code::kBroken, "a whim");
        default: break;
      }
      Status status = play_view(group, *seat);
      called(group, "an operation");
      if (!status.ok()) return status;
      ++outcome_.num_rounds;
    }
    return {};
  }

  // Makes another exchange if the view is one in which all do, or a member has none.
  Status make_exchange(Group& group, std::unique_ptr<Seat>& seat) {
    std::vector<int> have(group.size());
    const View view = group.view();
    const int has = seat && !case_.remakes_in(view.number) ? 1 : 0;
    Status status = group.all_gather(&has, sizeof has, have.data());
    called(group, "all_gather");
    if (!status.ok()) return status;
    if (std::ranges::all_of(view.members, [&](int rank) { return have[rank] == 1; })) return {};
    seat.reset();
    const Scenario& scenario = scenario_of(view);
    try {
      seat = std::make_unique<Seat>(group, scenario);
    } catch (const Error& error) {
      status = {error.code(), error.what(), error.culprit()};
    }
    called(group, "making an exchange in a later view");
    if (!status.ok()) return status;
    ++outcome_.num_remade;
    watch_exchange(group, scenario);
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
    // A rank that was refused in an earlier view lives, but its node gave up.
    const auto gave_up = [&](int rank) {
      return ranks_[rank].refused_in > 0 && ranks_[rank].refused_in < group.view().number;
    };
    std::set<int> reached;
    for (const int rank : group.view().members)
      if (!lost(rank) && !is_cut(me, rank) && !gave_up(rank))
        reached.insert(case_.nodes.of_rank[rank]);
    const bool others_went_on = views_.contains(group.view().number + 1);
    require(!is_enough(case_.nodes, group.view(), reached) || !has_two_parts() || others_went_on,
            "a part that may go on is refused: " + status.message());
    ++outcome_.num_refused;
    mine().refused_in = group.view().number;
    // Where others reach the part that went on only through this rank, they wait for it.
    if (has_two_parts() && simulation_.choose(2, kStayRarity) > 0)
      simulation_.sleep(nullptr, kStayNs);
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
    require(is_enough(case_.nodes, before, nodes),
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

  // `waits`: how long the call may wait although nothing is wrong.
  void called(const Group& group, const std::string& what, std::chrono::nanoseconds waits = {}) {
    if (dead()) return;
    times_.end(what, group.view().number, waits);
    if (mine().raises) {
      mine().gone = true;
      throw Raised();
    }
    times_.compute();
  }

  // ---- scenarios and flags

  // The members own the experts.
  const Scenario& scenario_of(const View& view) {
    const auto [found, fresh] = scenarios_.try_emplace(view.members);
    if (fresh) {
      ExchangeConfig config = case_.config;
      if (std::ssize(view.members) < case_.num_ranks()) config.expert_ranks = view.members;
      found->second = scenario_of_sets(case_.nodes, config, case_.seed);
    }
    return found->second;
  }

  bool first_of_node(int rank) const {
    return rank == 0 || case_.nodes.of_rank[rank] != case_.nodes.of_rank[rank - 1];
  }

  void watch_group(int rank) {
    if (first_of_node(rank)) watch_.add_group(machine_.last_mapped(rank), case_.num_ranks());
  }

  // The lowest rank of each node in the view adds the flags of the exchange, once for its node.
  void watch_exchange(const Group& group, const Scenario& scenario) {
    for (const int rank : group.view().members)
      if (rank < group.rank() && case_.nodes.of_rank[rank] == case_.nodes.of_rank[group.rank()])
        return;
    const internal::Setup setup(internal::complete_config(scenario.config, case_.num_ranks()),
                                group.topology(), group.rank(), {scenario.config.algorithm, ""});
    watch_.add_exchange(machine_.last_mapped(group.rank()), setup.layout, case_.num_ranks());
  }

  // ---- what happens to them

  void look(int rank) {
    if (simulation_.dead(rank)) return;  // a dead rank runs on to give back what it owns
    if (watch_.look(outcome_.wrong, rank)) simulation_.progressed();
    const auto counts = [&](const AgreementCase::Blow& blow) {
      return blow.rank == rank && blow.message < 0 && (!blow.in_survive || ranks_[rank].in_survive);
    };
    const auto due = std::ranges::find_if(
        blows_, [&](const AgreementCase::Blow& blow) { return counts(blow) && blow.turns <= 0; });
    for (AgreementCase::Blow& blow : blows_) blow.turns -= counts(blow) ? 1 : 0;
    if (due == blows_.end() || simulation_.ended(rank)) return;
    const AgreementCase::Blow blow = *due;
    blows_.erase(due);
    strike(blow);
  }

  // The rank sends the message, but the blow strikes only when the rank has lost the processor.
  // Until then the packets to other nodes are held up.
  void look_at_message(int from, std::span<const std::byte> body) {
    const auto due = std::ranges::find_if(blows_, [&](const AgreementCase::Blow& blow) {
      return blow.message >= 0 && blow.rank == from && has_message(body, blow.message);
    });
    if (due == blows_.end()) return;
    const AgreementCase::Blow blow = *due;
    blows_.erase(due);
    for (int peer = 0; peer < case_.num_ranks(); ++peer)
      if (case_.nodes.of_rank[peer] != case_.nodes.of_rank[from])
        network_.hold_up(from, peer, simulation_.time_ns() + kOutageNs);
    simulation_.at(simulation_.time_ns(), [this, blow] { strike(blow); });
  }

  // Whether a bundle of messages has one of an agreement, of this kind.
  bool has_message(std::span<const std::byte> bundle, int kind) const {
    internal::ByteReader reader(bundle);
    while (reader.ok() && reader.remaining() > 0) {
      internal::ByteReader message(reader.take(reader.get<std::uint64_t>()));
      const auto head = message.get<internal::MessageHead>();
      if (!reader.ok() || !message.ok() || head.channel != 0) continue;
      if (head.kind != internal::GroupMessage::kAgreement) continue;
      const auto agreed = internal::AgreementMessage::read(message.rest(), case_.num_ranks());
      if (agreed && static_cast<int>(agreed->what) == kind) return true;
    }
    return false;
  }

  void strike(const AgreementCase::Blow& blow) {
    if (blow.of_link()) return strike_link(blow);
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

  // Only the transports lose the link. The sockets over which ranks meet stay.
  void strike_link(const AgreementCase::Blow& blow) {
    const std::int64_t now = simulation_.time_ns();
    const int rank = blow.rank, peer = blow.peer;
    if (blow.fault != Fault::kCut) {
      // Packets that are still held up when the link is lost never arrive.
      const std::int64_t ns = blow.fault == Fault::kOutage ? kOutageNs : kSilentNs + kOutageNs;
      network_.hold_up(rank, peer, now + ns);
      if (!blow.one_way) network_.hold_up(peer, rank, now + ns);
    }
    if (blow.fault == Fault::kOutage || !cut_.insert(std::minmax(rank, peer)).second) return;
    if (blow.fault == Fault::kPartition) {
      simulation_.at(now + kSilentNs, [this, rank, peer] { network_.cut(rank, peer); });
      return;
    }
    if (!blow.one_way) return network_.cut(rank, peer);
    network_.cut_end(rank, peer);
    simulation_.at(now + kLaterNs, [this, rank, peer] { network_.cut_end(peer, rank); });
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
  std::map<std::vector<int>, Scenario> scenarios_;  // by the ranks that own experts
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

}  // namespace

AgreementOutcome run_agreement(const AgreementCase& drawn, bool trace) {
  RandomChoices choices(drawn.seed);
  return AgreementRun(drawn, choices, trace).play();
}

}  // namespace ferry::test
