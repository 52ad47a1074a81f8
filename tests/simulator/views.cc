#include "simulator/views.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>

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

namespace ferry::test {

namespace {

constexpr const char* kAddress = "a simulation";

class ViewsRun {
 public:
  ViewsRun(const ViewsCase& drawn, Choices& choices, bool trace)
      : case_(drawn),
        simulation_(choices, trace),
        network_(simulation_, std::vector<int>(drawn.num_processes())),
        kernel_(simulation_, network_, std::vector<int>(drawn.num_processes())),
        blows_(drawn.blows),
        processes_(drawn.num_processes()),
        times_(simulation_,
               {drawn.num_processes(), drawn.deadline, drawn.has(Fault::kStop), "process"},
               [this](const std::string& what) { complain(what); }) {}

  ViewsOutcome play() {
    for (int process = 0; process < case_.num_processes(); ++process)
      simulation_.add_rank([this, process] { be(process); });
    simulation_.after_step([this](int process) { look(process); });
    if (!simulation_.run()) outcome_.wrong.emplace_back("the run did not end");
    if (machine_.mappings.size() + kernel_.num_open() > 0)
      complain(fmt::format("left behind: {} segments, {} descriptors", machine_.mappings.size(),
                           kernel_.num_open()));
    check_admitted();
    outcome_.num_views = static_cast<int>(views_.size()) + 1;
    // Each process ends at most one view by its end and begins one, and others by survive().
    const int most = 1 + case_.num_processes() + outcome_.num_admitted + num_surviving_;
    if (outcome_.num_views > most && !case_.has(Fault::kStop))
      complain(fmt::format("{} views without a reason", outcome_.num_views));
    outcome_.digest = simulation_.digest();
    outcome_.steps = simulation_.steps();
    return outcome_;
  }

 private:
  static constexpr std::int64_t kStoppedNs = 150'000'000, kForGoodNs = 6'000'000'000;
  static constexpr int kWhimRarity = 6, kMostCalls = 200;

  using Members = std::vector<int>;  // [ranks] the process; kNobody: the view lacks the rank
  static constexpr int kNobody = -1;

  struct Raised {};
  struct Process {
    bool gone = false, raises = false;
    bool refused = false;           // it has not joined, though others may have: it lives on
    int clears = 0;                 // ranks whose flags it may clear, as bits
    bool in_admission = false;      // the same, or while it joins as a newcomer
    std::uint64_t admitted_in = 0;  // the view that began with it
  };
  struct Playing {
    std::unique_ptr<Seat> seat;
    int owners = 0;  // ranks that own experts of the exchange, as bits
  };

  void complain(const std::string& what) { outcome_.wrong.push_back(what); }
  Process& mine() { return processes_[simulation_.running()]; }
  bool dead() const { return simulation_.dead(simulation_.running()); }
  int rank_of(int process) const {
    return process < case_.num_ranks ? process : case_.returns[process - case_.num_ranks].rank;
  }

  // The process that the running one knows as `rank`.
  static int process_of(const Group& group, int rank) {
    return group.state()->rendezvous().pid(rank) - Kernel::kFirstPid;
  }
  Members members_of(const Group& group) const {
    Members members(case_.num_ranks, kNobody);
    for (const int rank : group.view().members) members[rank] = process_of(group, rank);
    return members;
  }
  bool lost(int process) const { return simulation_.dead(process) || processes_[process].gone; }

  // ---- a process

  void be(int process) {
    try {
      times_.begin();
      Playing playing;
      Group group = process < case_.num_ranks ? join(process) : come_back(process, playing);
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
    const GroupOptions options{.deadline = case_.deadline};
    const auto by = internal::Deadline::after(options.deadline);
    Group group = internal::GroupState::join(
        internal::process_rendezvous(kAddress, rank, std::vector<int>(case_.num_ranks), by),
        options, {"simulation", "a test"}, by, [this, rank] { return network_.transport(rank); });
    watch_group(group);
    return group;
  }

  Group come_back(int process, Playing& playing) {
    const ViewsCase::Return& drawn = case_.returns[process - case_.num_ranks];
    simulation_.sleep(nullptr, drawn.at_ns);
    times_.begin();
    ++outcome_.num_returns;
    mine().in_admission = true;
    Group group = Group::connect(kAddress, drawn.rank, case_.num_ranks,
                                 {.deadline = case_.deadline, .newcomer = true});
    mine().in_admission = false;
    mine().admitted_in = group.view().number;
    ++outcome_.num_admitted;
    if (!dead()) check_begun(group);
    called(group, "joining a view", case_.deadline);
    if (drawn.joins) join_exchange(group, playing);
    return group;
  }

  // An exchange of a view that lacked ranks is for the members of that view.
  void join_exchange(const Group& group, Playing& playing) {
    try {
      Exchange exchange = Exchange::join(group, case_.config);
      std::vector<int> owners = exchange.config().expert_ranks;
      if (owners.empty()) owners = internal::Survival(case_.num_ranks).view().members;
      playing.owners = set_of({.members = owners});
      playing.seat = std::make_unique<Seat>(group, scenario_of(owners), std::move(exchange));
      ++outcome_.num_joins;
    } catch (const Error& error) {
      require(error.code() == Code::kInvalidArgument || !group.usable() || dead(), error.what());
    }
    called(group, "joining an exchange");
  }

  // Offers end with the view of the admission.
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
    if (dead()) return;
    const bool newcomer = process >= case_.num_ranks;
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

  // Calls admit() as often as all members do. Ok: this view, or that which admit() began, goes on.
  Status take_back(Group& group) {
    for (int attempt = 0; !dead(); ++attempt) {
      const std::vector<int> lacking = lacking_in(group.view());
      const ViewsCase::Admit drawn = case_.admit_in(group.view().number, attempt, lacking.size());
      if (!drawn.called) break;
      std::vector<int> named;
      if (drawn.named >= 0) named.push_back(lacking[drawn.named]);
      const Members before = members_of(group);
      const std::uint64_t number = group.view().number;
      // The coordinator of an admission clears the flags of ranks that its view lacks.
      if (group.rank() == group.view().members[0]) mine().clears = set_of({.members = lacking});
      mine().in_admission = true;
      const Status status = group.admit(named, drawn.deadline);
      mine().in_admission = false;
      if (dead()) break;
      if (status.ok()) {
        check_view(group, number, before);
        attempt = -1;
      }
      outcome_.num_refused += status.ok() ? 0 : 1;
      called(group, "admit", drawn.deadline);
      // A member that came late is in the view, and the others cannot meet it there.
      if (status.code() == Code::kTimeout) {
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
    for (int rank = 0; rank < case_.num_ranks; ++rank)
      if (std::ranges::count(view.members, rank) == 0) ranks.push_back(rank);
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

  // Makes an exchange if a rank of the view has none, or it is not for all of them.
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
    const Members before = members_of(group);
    const std::uint64_t number = group.view().number;
    for (int calls = 0; !dead(); ++calls) {
      require(calls < kMostCalls, "survive() did not end");
      const Status status = group.survive();
      called(group, "survive");
      if (dead()) return false;
      if (status.ok()) break;
      require(status.code() == Code::kTimeout && case_.has(Fault::kStop),
              "survive: " + status.message());
      const int culprit = process_of(group, status.culprit());
      if (processes_[culprit].refused) return false;
      require(is_stopped(culprit), "survive names a rank that is not stopped: " + status.message());
    }
    if (dead()) return false;
    check_view(group, number, before);
    for (const int rank : group.view().members)
      require(before[rank] != kNobody, fmt::format("rank {} came back by survive()", rank));
    return true;
  }

  // The next view has begun, on a member of the last one.
  void check_view(const Group& group, std::uint64_t last, const Members& before) {
    const std::uint64_t number = group.view().number;
    require(number == last + 1, fmt::format("view {} follows view {}", number, last));
    const Members now = check_begun(group);
    for (int rank = 0; rank < case_.num_ranks; ++rank) {
      if (before[rank] == kNobody) continue;
      require(now[rank] == before[rank] || (now[rank] == kNobody && lost(before[rank])),
              fmt::format("view {} has process {} as rank {}, and not process {}, which lives",
                          number, now[rank], rank, before[rank]));
    }
  }

  // A view has the same ranks, played by the same processes, on all of them.
  Members check_begun(const Group& group) {
    const std::uint64_t number = group.view().number;
    Members now = members_of(group);
    const auto [known, fresh] = views_.emplace(number, now);
    require(known->second == now,
            fmt::format("view {} has processes {} and processes {}", number,
                        fmt::join(known->second, ", "), fmt::join(now, ", ")));
    require(
        now[group.rank()] == simulation_.running() && rank_of(now[group.rank()]) == group.rank(),
        fmt::format("process {} is process {} of view {}", simulation_.running(), now[group.rank()],
                    number));
    return now;
  }

  // A process that a view has was admitted there or in an earlier view, or died meanwhile. Views
  // have the numbers from 2 on.
  void check_admitted() {
    std::uint64_t number = 1;
    for (const auto& [begun, members] : views_) {
      if (begun != ++number) complain(fmt::format("view {} was left out", number));
      number = begun;
      for (const int process : members) {
        if (process < case_.num_ranks || simulation_.dead(process)) continue;
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
    // One that was stopped in admit() finds that the others wait there no more.
    const bool stopped = case_.has(Fault::kStop) && is_stopped(simulation_.running());
    require(stopped || lost(process_of(group, status.culprit())),
            "a rank that lives is called lost: " + status.message());
  }

  // `waits`: for so long a call may wait where nothing is wrong.
  void called(const Group& group, const std::string& what, std::chrono::nanoseconds waits = {}) {
    if (dead()) return;
    times_.end(what, group.view().number, waits);
    if (mine().raises) throw Raised();
    times_.compute();
  }

  // ---- scenarios and flags

  const Scenario& scenario_of(const std::vector<int>& owners) {
    const auto [found, fresh] = scenarios_.try_emplace(owners);
    if (fresh) {
      ExchangeConfig config = case_.config;
      if (std::ssize(owners) < case_.num_ranks) config.expert_ranks = owners;
      found->second = scenario_of_sets(case_.num_ranks, config, case_.seed);
    }
    return found->second;
  }

  void watch_group(const Group& group) {
    if (group.rank() == 0) watch_.add_group(machine_.last_mapped(0), case_.num_ranks);
  }

  void watch_exchange(const Group& group, const Scenario& scenario) {
    if (group.rank() != group.view().members[0]) return;
    const internal::Setup setup(internal::complete_config(scenario.config, case_.num_ranks),
                                group.topology(), group.rank(), {scenario.config.algorithm, ""});
    watch_.add_exchange(machine_.last_mapped(simulation_.running()), setup.layout, case_.num_ranks);
  }

  // ---- what happens to them

  bool is_stopped(int process) const { return simulation_.stopped_ns(process) > 0; }

  void look(int process) {
    if (simulation_.dead(process)) return;  // it goes on to its end
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
  std::map<std::uint64_t, Members> views_;          // those that have begun, from the second on
  int num_surviving_ = 0;                           // ranks that ended a view by a whim
  FlagWatch watch_{
      [this](int rank, int process) { return (processes_[process].clears >> rank & 1) != 0; }};
  ViewsOutcome outcome_;
};

}  // namespace

bool ViewsCase::has(Fault fault) const {
  return std::ranges::any_of(blows, [fault](const Blow& blow) { return blow.fault == fault; });
}

// Equal on all members of the view.
ViewsCase::Admit ViewsCase::admit_in(std::uint64_t view, int attempt, int num_lost) const {
  constexpr int kMostAttempts = 3;
  if (returns.empty() || num_lost == 0 || attempt >= kMostAttempts) return {};
  Random random(seed, 6004 + view * kMostAttempts + static_cast<std::uint64_t>(attempt));
  return {.called = !random.one_in(4),
          .named = random.one_in(2) ? -1 : static_cast<int>(random.below(num_lost)),
          .deadline = std::chrono::milliseconds(random.pick(std::array{30, 120, 500, 2000}))};
}

std::string ViewsCase::describe() const {
  std::string text = fmt::format("{} ranks, {} rounds", num_ranks, num_rounds);
  for (const Blow& blow : blows)
    text += fmt::format(", {} of process {} after {} turns{}", name_of(blow.fault), blow.process,
                        blow.turns, blow.in_admission ? " in admissions" : "");
  for (const Return& back : returns)
    text += fmt::format(", rank {} comes after {} us", back.rank, back.at_ns / 1000);
  return text;
}

namespace {

constexpr std::array kBlows = {Fault::kDeath, Fault::kDeath, Fault::kDeath,
                               Fault::kRaise, Fault::kPause, Fault::kStop};

// In half of the cases, with faults of their own.
void draw_returns(ViewsCase& drawn) {
  constexpr std::array<std::int64_t, 5> kAtNs = {0, 1'000'000, 10'000'000, 50'000'000, 200'000'000};
  Random random(drawn.seed, 6003);
  if (random.one_in(2)) return;
  const int lost = static_cast<int>(random.below(drawn.num_ranks));
  for (std::int64_t left = random.between(1, 3); left > 0; --left)
    drawn.returns.push_back(
        {.rank = random.one_in(3) ? static_cast<int>(random.below(drawn.num_ranks)) : lost,
         .at_ns = random.pick(kAtNs),
         .joins = !random.one_in(4)});
  if (!random.one_in(4))
    drawn.blows.push_back(
        {.fault = Fault::kDeath, .process = lost, .turns = static_cast<int>(random.below(100))});
  for (std::int64_t left = random.between(0, 2); left > 0; --left)
    drawn.blows.push_back(
        {.fault = random.pick(kBlows),
         .process = static_cast<int>(random.below(drawn.num_processes())),
         .turns = static_cast<int>(random.below(random.pick(std::array{10, 40, 150}))),
         .in_admission = true});
}

}  // namespace

ViewsCase draw_views(std::uint64_t seed) {
  constexpr std::array kMostTurns = {20, 100, 300, 1000};
  Random random(seed, 6002);
  ViewsCase drawn{.seed = seed, .num_ranks = static_cast<int>(random.between(2, 4))};
  drawn.config = {
      .max_tokens = random.between(1, 5),
      .hidden = random.between(1, 20),
      .num_experts = 12,
      .top_k = static_cast<int>(random.between(1, 4)),
      .dtype = random.pick(std::array{DataType::kBf16, DataType::kFp32}),
      .layout = random.pick(std::array{Layout::kRankMajor, Layout::kExpertMajor, Layout::kPadded}),
      .depth = static_cast<int>(random.between(1, 3))};
  for (std::int64_t left = random.between(0, 3); left > 0; --left)
    drawn.blows.push_back({.fault = random.pick(kBlows),
                           .process = static_cast<int>(random.below(drawn.num_ranks)),
                           .turns = static_cast<int>(random.below(random.pick(kMostTurns)))});
  drawn.num_rounds = static_cast<int>(random.between(1, 5));
  draw_returns(drawn);
  if (drawn.has(Fault::kStop)) drawn.deadline = std::chrono::milliseconds(400);
  return drawn;
}

ViewsOutcome run_views(const ViewsCase& drawn, bool trace) {
  RandomChoices choices(drawn.seed);
  return ViewsRun(drawn, choices, trace).play();
}

}  // namespace ferry::test
