#include "simulator/views.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <ranges>
#include <set>

#include "exchange/setup/configuration.h"
#include "exchange/setup/setup.h"
#include "exchange/view_rounds.h"
#include "group/state.h"
#include "simulator/call_times.h"
#include "simulator/flag_watch.h"
#include "simulator/kernel.h"
#include "simulator/machine.h"
#include "simulator/network.h"

namespace ferry::test {

namespace {

constexpr int kGroupPort = 4711;

class ViewsRun {
 public:
  ViewsRun(const ViewsCase& drawn, Choices& choices, bool trace)
      : case_(drawn),
        simulation_(choices, trace),
        network_(simulation_, nodes_of_processes(drawn)),
        kernel_(simulation_, network_, drawn.hosts()),
        blows_(drawn.blows),
        processes_(drawn.num_processes()),
        times_(simulation_,
               {drawn.num_processes(), drawn.deadline, drawn.has(Fault::kStop), "process"},
               [this](const std::string& what) { complain(what); }) {
    Members& first = views_[1];
    for (int rank = 0; rank < drawn.num_ranks(); ++rank)
      first.push_back(drawn.begins_with(rank) ? rank : kNobody);
  }

  ViewsOutcome play() {
    for (int process = 0; process < case_.num_processes(); ++process)
      simulation_.add_rank([this, process] { be(process); });
    simulation_.after_step([this](int process) { look(process); });
    if (!simulation_.run()) outcome_.wrong.emplace_back("the run did not end");
    if (machine_.mappings.size() + network_.num_transports() + kernel_.num_open() > 0)
      complain(fmt::format("left behind: {} segments, {} transports, {} descriptors",
                           machine_.mappings.size(), network_.num_transports(),
                           kernel_.num_open()));
    check_admitted();
    outcome_.num_views = static_cast<int>(views_.size());
    // A process ends at most one view by its own end, begins at most one when it is admitted, and
    // may end others by calling survive().
    const int admitted = std::max(outcome_.num_admitted, num_with_newcomers());
    const int most = 1 + case_.num_processes() + admitted + num_surviving_;
    if (outcome_.num_views > most && !case_.has(Fault::kStop))
      complain(fmt::format("{} views without a reason", outcome_.num_views));
    outcome_.digest = simulation_.digest();
    outcome_.steps = simulation_.steps();
    return outcome_;
  }

 private:
  static constexpr std::int64_t kStoppedNs = 150'000'000, kForGoodNs = 6'000'000'000,
                                kOutageNs = 100'000'000;
  static constexpr int kWhimRarity = 6, kMostCalls = 200;

  // [ranks] the process; kNobody: the view lacks the rank; kUnknown: no process has told it yet.
  using Members = std::vector<int>;
  static constexpr int kNobody = -1, kUnknown = -2;

  struct Raised {};
  struct Process {
    bool gone = false, raises = false;
    bool refused = false;           // its join failed, though others may have joined; it lives on
    bool late = false;              // its join failed at its deadline
    int clears = 0;                 // ranks whose flags it may clear, as bits
    bool in_admission = false;      // it is in admit(), or joins as a newcomer
    std::uint64_t admitted_in = 0;  // the view that began with it
    std::uint64_t late_in = 0;      // the last view in which its admit() reached its deadline
  };
  struct Playing {
    std::unique_ptr<Seat> seat;
    int owners = 0;  // ranks that own experts of the exchange, as bits
  };

  void complain(const std::string& what) { outcome_.wrong.push_back(what); }
  Process& mine() { return processes_[simulation_.running()]; }
  bool dead() const { return simulation_.dead(simulation_.running()); }
  static std::vector<int> nodes_of_processes(const ViewsCase& drawn) {
    std::vector<int> nodes;
    for (int process = 0; process < drawn.num_processes(); ++process)
      nodes.push_back(drawn.nodes.of_rank[drawn.rank_of(process)]);
    return nodes;
  }
  int node_of(int rank) const { return case_.nodes.of_rank[rank]; }
  bool first_of_node(const View& view, int rank) const {
    return std::ranges::none_of(
        view.members, [&](int one) { return one < rank && node_of(one) == node_of(rank); });
  }

  // The members of the group's present view, as far as the running process knows their processes
  // itself.
  Members members_of(const Group& group) const {
    Members members(case_.num_ranks(), kNobody);
    for (const int rank : group.view().members) {
      const int reached = network_.reached(simulation_.running(), rank);
      members[rank] = reached < 0 ? kUnknown : reached;
      if (group.state()->here(rank))
        members[rank] = group.state()->rendezvous().pid(rank) - Kernel::kFirstPid;
    }
    members[group.rank()] = simulation_.running();
    return members;
  }
  // The process that is `rank` in the view of the group.
  int process_of(const Group& group, int rank) const {
    return views_.at(group.view().number)[rank];
  }
  // Between nodes a newcomer that loses the members of its node tries again, and counts as lost
  // until it is admitted.
  bool lost(int process) const {
    if (process < 0 || simulation_.dead(process) || processes_[process].gone) return true;
    return case_.nodes.several() && process >= case_.num_ranks() &&
           processes_[process].admitted_in == 0;
  }

  // ---- a process

  void be(int process) {
    if (process < case_.num_ranks() && !case_.begins_with(process)) {
      mine().gone = true;
      return;
    }
    try {
      times_.begin();
      Playing playing;
      Group group = process < case_.num_ranks() ? join(process) : come_back(process, playing);
      live(group, playing);
    } catch (const Raised&) {
    } catch (const Error& error) {  // of the join
      mine().refused = true;
      check_refused(process, error);
    } catch (const std::exception& failure) {
      if (!dead()) complain(fmt::format("process {}: {}", process, failure.what()));
    }
    mine().gone = true;
  }

  Group join(int rank) {
    Group group = connect(rank, false);
    watch_group();
    return group;
  }

  // The first host of the address is that of rank 0. A newcomer finds the group at any host.
  Group connect(int rank, bool newcomer) const {
    std::string address = "a simulation";
    if (!case_.one_host) {
      std::vector<std::string> hosts;
      for (int host = 0; host <= std::ranges::max(case_.hosts()); ++host)
        hosts.push_back(fmt::format("10.77.0.{}", host + 1));
      address = fmt::format("tcp://{}:{}", fmt::join(hosts, ","), kGroupPort);
    }
    return Group::connect(address, rank, case_.num_ranks(),
                          {.deadline = case_.deadline,
                           .topology = case_.nodes.topology,
                           .newcomer = newcomer,
                           .members = case_.first});
  }

  Group come_back(int process, Playing& playing) {
    const ViewsCase::Return& drawn = case_.returns[process - case_.num_ranks()];
    simulation_.sleep(nullptr, drawn.at_ns);
    times_.begin();
    ++outcome_.num_returns;
    mine().in_admission = true;
    Group group = connect(drawn.rank, true);
    mine().in_admission = false;
    watch_group();
    mine().admitted_in = group.view().number;
    ++outcome_.num_admitted;
    if (!dead()) check_begun(group);
    called(group, "joining a view", case_.deadline);
    if (drawn.joins) join_exchange(group, playing);
    return group;
  }

  // An exchange that was made in a view without some ranks has experts on the members of that view
  // only.
  void join_exchange(const Group& group, Playing& playing) {
    try {
      Exchange exchange = Exchange::join(group, case_.config);
      std::vector<int> owners = exchange.config().expert_ranks;
      if (owners.empty()) owners = internal::Survival(case_.num_ranks()).view().members;
      playing.owners = set_of({.members = owners});
      playing.seat = std::make_unique<Seat>(group, scenario_of(owners), std::move(exchange));
      ++outcome_.num_joins;
    } catch (const Error& error) {
      require(error.code() == Code::kInvalidArgument || !group.usable() || dead(), error.what());
    }
    called(group, "joining an exchange");
  }

  // A newcomer can join an exchange only in the view that its admission began.
  void check_old_offers(const Group& group) const {
    Code code = Code::kOk;
    try {
      const Exchange joined = Exchange::join(group, case_.config);
    } catch (const Error& error) {
      code = error.code();
    }
    require(code == Code::kInvalidArgument || !group.usable() || dead(),
            fmt::format("an old offer in view {}: {}", group.view().number, code_name(code)));
  }

  void check_refused(int process, const Error& error) {
    mine().in_admission = false;
    mine().late = error.code() == Code::kTimeout;
    if (dead()) return;
    const bool newcomer = process >= case_.num_ranks();
    times_.check(newcomer ? "joining a view" : "joining", case_.deadline);
    if (!newcomer && blows_.size() == case_.blows.size())
      complain(fmt::format("rank {}: an error without a fault: {}", process, error.what()));
  }

  void live(Group& group, Playing& playing) {
    for (int calls = 0; !dead(); ++calls) {
      require(calls < kMostCalls, "the views did not end");
      std::optional<Status> ended = take_back(group);
      if (ended->ok()) ended = play_in_view(group, playing);
      if (!ended || dead()) break;
      if (ended->ok()) continue;
      check_error(group, *ended);
      if (!go_on(group)) break;
      if (mine().admitted_in > 0) check_old_offers(group);
    }
    mine().gone = true;
    playing.seat.reset();
  }

  // Calls admit() as often as the case says for all members. Ok: the present view goes on.
  Status take_back(Group& group) {
    for (int attempt = 0; !dead(); ++attempt) {
      const std::vector<int> lacking = lacking_in(group.view());
      std::vector<int> named = coming_to(lacking);
      const ViewsCase::Admit drawn = case_.admit_in(group.view().number, attempt, named.size());
      if (!drawn.called) break;
      if (drawn.named >= 0) named = {named[drawn.named]};
      if (named == lacking) named.clear();
      const Members before = views_.at(group.view().number);
      const std::uint64_t number = group.view().number;
      // The first member of each node clears the flags of ranks that the view lacks.
      if (first_of_node(group.view(), group.rank())) mine().clears = set_of({.members = lacking});
      mine().in_admission = true;
      const Status status = group.admit(named, drawn.deadline);
      mine().in_admission = false;
      if (dead()) break;
      if (group.view().number != number) {  // also if it lacks a newcomer
        check_view(group, number, before);
        attempt = -1;
      }
      outcome_.num_refused += status.ok() ? 0 : 1;
      called(group, "admit", drawn.deadline);
      // A member that came late is in the view, and the others cannot meet it there.
      if (status.code() == Code::kTimeout) {
        mine().late_in = group.view().number;
        ++num_surviving_;
        return {Code::kBroken, "admit: " + status.message(), status.culprit()};
      }
      if (!status.group_usable()) return status;
      require(status.ok() || status.code() == Code::kPeerRejected ||
                  status.code() == Code::kInvalidArgument,
              "admit: " + status.message());
    }
    return {};
  }

  std::vector<int> lacking_in(const View& view) const {
    std::vector<int> ranks;
    for (int rank = 0; rank < case_.num_ranks(); ++rank)
      if (std::ranges::count(view.members, rank) == 0) ranks.push_back(rank);
    return ranks;
  }

  // Between nodes, only those of `ranks` whose places processes come to take.
  std::vector<int> coming_to(std::vector<int> ranks) const {
    if (!case_.nodes.several()) return ranks;
    std::erase_if(ranks, [&](int rank) {
      return std::ranges::find(case_.returns, rank, &ViewsCase::Return::rank) ==
             case_.returns.end();
    });
    return ranks;
  }

  // The status with which the view ended; ok: a new exchange is wanted; none: this rank leaves.
  std::optional<Status> play_in_view(Group& group, Playing& playing) {
    if (Status status = make_exchange(group, playing); !status.ok() || dead()) return status;
    for (int round = 0; round < case_.num_rounds && !dead(); ++round) {
      switch (static_cast<Whim>(simulation_.choose(4, kWhimRarity))) {
        case Whim::kLeave: return {};
        case Whim::kSurvive: ++num_surviving_; return Status(Code::kBroken, "a whim");
        case Whim::kNewExchange:
          playing.seat.reset();
          ++num_surviving_;
          return Status(Code::kBroken, "");
        case Whim::kNone: break;
      }
      Status status = play_view(group, *playing.seat);
      called(group, "an operation");
      if (!status.ok()) return status;
      ++outcome_.num_rounds;
    }
    return {};
  }

  // Makes an exchange if some rank of the view has none, or has one without experts on all ranks of
  // the view.
  Status make_exchange(Group& group, Playing& playing) {
    std::vector<int> have(group.size());
    const View view = group.view();
    const int has = playing.seat && (set_of(view) & ~playing.owners) == 0 ? 1 : 0;
    Status status = group.all_gather(&has, sizeof has, have.data());
    called(group, "all_gather");
    if (!status.ok()) return status;
    if (std::ranges::all_of(view.members, [&](int rank) { return have[rank] == 1; })) return {};
    playing.seat.reset();
    const Scenario& scenario = scenario_of(view.members);
    try {
      playing.seat = std::make_unique<Seat>(group, scenario);
      playing.owners = set_of(view);
    } catch (const Error& error) {
      status = {error.code(), error.what(), error.culprit()};
    }
    called(group, "making an exchange");
    if (!status.ok()) return status;
    if (view.number > 1) ++outcome_.num_remade;
    watch_exchange(group, scenario);
    return {};
  }

  // False: this process ends.
  bool go_on(Group& group) {
    const Members before = views_.at(group.view().number);
    const std::uint64_t number = group.view().number;
    for (int calls = 0; !dead(); ++calls) {
      require(calls < kMostCalls, "survive() did not end");
      const Status status = group.survive();
      called(group, "survive");
      if (dead()) return false;
      if (status.ok()) break;
      if (status.code() == Code::kPeerLost) return check_refused_part(group, status), false;
      require(status.code() == Code::kTimeout && case_.has(Fault::kStop),
              "survive: " + status.message());
      const int culprit = process_of(group, status.culprit());
      if (culprit >= 0 && processes_[culprit].refused) return false;
      // Between nodes survive() may name any rank that it waits for.
      require(case_.nodes.several() || is_stopped(culprit),
              "survive names a rank that is not stopped: " + status.message());
    }
    if (dead()) return false;
    check_view(group, number, before);
    // Between nodes survive() may complete an admission whose admit() reached its deadline.
    for (const int rank : group.view().members)
      require(before[rank] != kNobody || (case_.nodes.several() && mine().late_in == number),
              fmt::format("rank {} came back by survive()", rank));
    return true;
  }

  // The part of a group that has too few votes may not go on.
  void check_refused_part(const Group& group, const Status& status) {
    const View& view = group.view();
    std::set<int> nodes;
    for (const int rank : view.members)
      if (!lost(process_of(group, rank))) nodes.insert(node_of(rank));
    require(case_.nodes.several() && !is_enough(case_.nodes, view, nodes),
            "survive: " + status.message());
    ++outcome_.num_ended;
  }

  // The next view has begun; `before` has the processes of the last one.
  void check_view(const Group& group, std::uint64_t last, const Members& before) {
    const std::uint64_t number = group.view().number;
    require(number == last + 1, fmt::format("view {} follows view {}", number, last));
    const Members now = check_begun(group);
    for (int rank = 0; rank < case_.num_ranks(); ++rank) {
      if (before[rank] < 0 || now[rank] == kUnknown) continue;
      require(now[rank] == before[rank] || (now[rank] == kNobody && lost(before[rank])),
              fmt::format("view {} has process {} as rank {}, and not process {}, which lives",
                          number, now[rank], rank, before[rank]));
    }
  }

  // All members of a view see the same ranks in it, and the same process as each rank.
  Members check_begun(const Group& group) {
    const std::uint64_t number = group.view().number;
    const Members now = members_of(group);
    Members& known = views_.emplace(number, now).first->second;
    for (int rank = 0; rank < case_.num_ranks(); ++rank) {
      if (known[rank] == kUnknown && now[rank] != kNobody) known[rank] = now[rank];
      require(known[rank] == now[rank] || (now[rank] == kUnknown && known[rank] != kNobody),
              fmt::format("view {} has processes {} and processes {}", number,
                          fmt::join(known, ", "), fmt::join(now, ", ")));
    }
    require(case_.rank_of(simulation_.running()) == group.rank(),
            fmt::format("process {} is rank {} of view {}", simulation_.running(), group.rank(),
                        number));
    return known;
  }

  // The number of views that begin with a process that the view before them lacks. The process may
  // have died before it knew.
  int num_with_newcomers() const {
    int count = 0;
    for (auto view = std::next(views_.begin()); view != views_.end(); ++view) {
      const Members &before = std::prev(view)->second, &now = view->second;
      const auto has_come = [&](int rank) {
        return now[rank] != kNobody && now[rank] != before[rank];
      };
      if (std::ranges::any_of(std::views::iota(0, case_.num_ranks()), has_come)) ++count;
    }
    return count;
  }

  // A process that a view has was admitted in that view or in an earlier one, or died meanwhile.
  // The numbers of views have no gap.
  void check_admitted() {
    std::uint64_t number = 0;
    for (const auto& [begun, members] : views_) {
      if (begun != ++number) complain(fmt::format("view {} was left out", number));
      number = begun;
      for (const int process : members) {
        if (process < case_.num_ranks() || simulation_.dead(process)) continue;
        // Between nodes a newcomer's join may reach its deadline after the members have agreed on
        // the view. Or the members of its node die or leave, and the newcomer tries again.
        const bool had_members = std::ranges::any_of(members, [&](int other) {
          return other >= 0 && other != process &&
                 node_of(case_.rank_of(other)) == node_of(case_.rank_of(process));
        });
        // Or its node has no members, and those that admitted it die before it knows of the view.
        const auto before = views_.find(begun - 1);
        const bool orphaned =
            before != views_.end() && std::ranges::all_of(before->second, [&](int other) {
              return other < 0 || simulation_.dead(other);
            });
        if (case_.nodes.several() && (processes_[process].late || had_members || orphaned))
          continue;
        const std::uint64_t first = processes_[process].admitted_in;
        if (first == 0 || first > begun)
          complain(fmt::format("view {} has process {}, which was admitted in view {}", begun,
                               process, first));
      }
    }
  }

  void check_error(const Group& group, const Status& status) {
    const bool late = status.code() == Code::kTimeout && case_.has(Fault::kStop);
    const bool over = status.code() == Code::kPeerLost || status.code() == Code::kBroken;
    require(late || over, status.message());
    const bool names = status.culprit() >= 0 && status.culprit() < group.size();
    // A rank that was stopped may find only that another one reached its deadline.
    require(names || status.code() == Code::kBroken || is_stopped(simulation_.running()),
            "nobody is named: " + status.message());
    if (status.code() != Code::kPeerLost) return;
    // A rank that was stopped in admit() finds that the others do not wait there any more.
    const bool stopped = case_.has(Fault::kStop) && is_stopped(simulation_.running());
    require(stopped || lost(process_of(group, status.culprit())),
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

  const Scenario& scenario_of(const std::vector<int>& owners) {
    const auto [found, fresh] = scenarios_.try_emplace(owners);
    if (fresh) {
      ExchangeConfig config = case_.config;
      if (std::ssize(owners) < case_.num_ranks()) config.expert_ranks = owners;
      found->second = scenario_of_sets(case_.nodes, config, case_.seed);
    }
    return found->second;
  }

  void watch_group() {
    watch_.add_group(machine_.first_mapped(simulation_.running()), case_.num_ranks());
  }

  void watch_exchange(const Group& group, const Scenario& scenario) {
    if (!first_of_node(group.view(), group.rank())) return;
    const internal::Setup setup(internal::complete_config(scenario.config, case_.num_ranks()),
                                group.topology(), group.rank(), {scenario.config.algorithm, ""});
    watch_.add_exchange(machine_.last_mapped(simulation_.running()), setup.layout,
                        case_.num_ranks());
  }

  // ---- what happens to them

  bool is_stopped(int process) const { return simulation_.stopped_ns(process) > 0; }

  void look(int process) {
    if (simulation_.dead(process)) return;  // a dead process runs on to give back what it owns
    if (watch_.look(outcome_.wrong, process)) simulation_.progressed();
    if (!processes_[process].in_admission) processes_[process].clears = 0;
    const auto counts = [&](const ViewsCase::Blow& blow) {
      return blow.process == process && (!blow.in_admission || processes_[process].in_admission);
    };
    const auto due = std::ranges::find_if(
        blows_, [&](const ViewsCase::Blow& blow) { return counts(blow) && blow.turns <= 0; });
    for (ViewsCase::Blow& blow : blows_) blow.turns -= counts(blow) ? 1 : 0;
    if (due == blows_.end() || simulation_.ended(process)) return;
    const Fault fault = due->fault;
    blows_.erase(due);
    const std::int64_t now = simulation_.time_ns();
    if (fault == Fault::kPause) return simulation_.stop(process, now + kStoppedNs);
    if (fault == Fault::kStop) return simulation_.stop(process, now + kForGoodNs);
    if (fault == Fault::kOutage)
      return network_.part(node_of(case_.rank_of(process)), now + kOutageNs);
    if (fault == Fault::kRaise) {
      processes_[process].raises = true;
      return;
    }
    simulation_.kill(process);
    network_.kill(process);
    kernel_.kill(process);
  }

  const ViewsCase& case_;
  Machine machine_;
  Simulation simulation_;
  Network network_;
  Kernel kernel_;
  std::vector<ViewsCase::Blow> blows_;  // those to come
  std::vector<Process> processes_;
  CallTimes times_;
  std::map<std::vector<int>, Scenario> scenarios_;  // by the ranks that own experts
  std::map<std::uint64_t, Members> views_;          // those that have begun
  int num_surviving_ = 0;                           // ranks that ended a view by a whim
  FlagWatch watch_{
      [this](int rank, int process) { return (processes_[process].clears >> rank & 1) != 0; },
      !case_.nodes.several()};
  ViewsOutcome outcome_;
};

}  // namespace

bool is_enough(const Nodes& nodes, const View& view, const std::set<int>& numbers) {
  const auto votes = std::ranges::count_if(
      view.members, [&](int rank) { return numbers.contains(nodes.of_rank[rank]); });
  return 2 * votes > std::ssize(view.members) || (2 * votes == std::ssize(view.members) &&
                                                  numbers.contains(nodes.of_rank[view.members[0]]));
}

ViewsOutcome run_views(const ViewsCase& drawn, bool trace) {
  RandomChoices choices(drawn.seed);
  return ViewsRun(drawn, choices, trace).play();
}

}  // namespace ferry::test
