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
#include "simulator/flag_watch.h"
#include "simulator/kernel.h"
#include "simulator/machine.h"
#include "simulator/network.h"

namespace ferry::test {

namespace {

class ViewsRun {
 public:
  ViewsRun(const ViewsCase& drawn, Choices& choices, bool trace)
      : case_(drawn),
        simulation_(choices, trace),
        network_(simulation_, std::vector<int>(drawn.num_ranks)),
        kernel_(simulation_, network_, std::vector<int>(drawn.num_ranks)),
        blows_(drawn.blows),
        ranks_(drawn.num_ranks) {}

  ViewsOutcome play() {
    for (int rank = 0; rank < case_.num_ranks; ++rank)
      simulation_.add_rank([this, rank] { be(rank); });
    simulation_.after_step([this](int rank) { look(rank); });
    if (!simulation_.run()) outcome_.wrong.emplace_back("the run did not end");
    if (machine_.mappings.size() + kernel_.num_open() > 0)
      complain(fmt::format("left behind: {} segments, {} descriptors", machine_.mappings.size(),
                           kernel_.num_open()));
    outcome_.num_views = static_cast<int>(views_.size()) + 1;
    // Each rank ends at most one view by its end, and others by survive().
    if (outcome_.num_views > 1 + case_.num_ranks + num_surviving_ && !case_.has(Fault::kStop))
      complain(fmt::format("{} views without a reason", outcome_.num_views));
    outcome_.digest = simulation_.digest();
    outcome_.steps = simulation_.steps();
    return outcome_;
  }

 private:
  static constexpr std::int64_t kStoppedNs = 150'000'000, kForGoodNs = 6'000'000'000;
  // What a call may take beyond its deadline; and what a call takes where no rank is stopped: a
  // rank that is lost is named within a second (README.md).
  static constexpr std::int64_t kGraceNs = 900'000'000, kPromptNs = 1'000'000'000;
  static constexpr int kWhimRarity = 6, kComputeRarity = 5, kMostCalls = 200;
  static constexpr std::array<std::int64_t, 4> kComputeNs = {0, 50'000, 2'000'000, 60'000'000};

  struct Raised {};
  struct Rank {
    bool gone = false, raises = false;
    bool refused = false;  // it has not joined, though others may have: its process lives on
    std::int64_t told_ns = 0, stopped_ns = 0;  // when its last call returned
  };

  void complain(const std::string& what) { outcome_.wrong.push_back(what); }
  Rank& mine(const Group& group) { return ranks_[group.rank()]; }
  bool dead(int rank) const { return simulation_.dead(rank); }

  // ---- a rank

  void be(int rank) {
    try {
      GroupOptions options;
      options.deadline = case_.deadline;
      called(rank);
      const auto by = internal::Deadline::after(options.deadline);
      Group group = internal::GroupState::join(
          internal::process_rendezvous("a simulation", rank, std::vector<int>(case_.num_ranks), by),
          options, {"simulation", "a test"}, by, [this, rank] { return network_.transport(rank); });
      watch_group(group);
      live(group);
    } catch (const Raised&) {
    } catch (const Error& error) {  // of the join
      ranks_[rank].refused = true;
      if (blows_.size() == case_.blows.size() && !dead(rank))
        complain(fmt::format("rank {}: an error without a fault: {}", rank, error.what()));
    } catch (const std::exception& failure) {
      if (!dead(rank)) complain(fmt::format("rank {}: {}", rank, failure.what()));
    }
    ranks_[rank].gone = true;
  }

  void live(Group& group) {
    std::unique_ptr<Seat> seat;
    for (int calls = 0; !dead(group.rank()); ++calls) {
      require(calls < kMostCalls, "the views did not end");
      const std::optional<Status> ended = play_in_view(group, seat);
      if (!ended || dead(group.rank())) break;
      if (ended->ok()) continue;
      check_error(group, *ended);
      if (!go_on(group)) break;
    }
    ranks_[group.rank()].gone = true;
    seat.reset();
  }

  // The status with which the view ended; ok: a new exchange is wanted; none: this rank leaves.
  std::optional<Status> play_in_view(Group& group, std::unique_ptr<Seat>& seat) {
    if (Status status = make_exchange(group, seat); !status.ok()) return status;
    for (int round = 0; round < case_.num_rounds; ++round) {
      switch (static_cast<Whim>(simulation_.choose(4, kWhimRarity))) {
        case Whim::kLeave: return {};
        case Whim::kSurvive: ++num_surviving_; return Status(Code::kBroken, "a whim");
        case Whim::kNewExchange:
          seat.reset();
          ++num_surviving_;
          return Status(Code::kBroken, "");
        case Whim::kNone: break;
      }
      Status status = play_view(group, *seat);
      called(group, "an operation");
      if (!status.ok()) return status;
      ++outcome_.num_rounds;
    }
    return {};
  }

  // Makes an exchange if a rank of the view has none.
  Status make_exchange(Group& group, std::unique_ptr<Seat>& seat) {
    std::vector<int> have(group.size());
    const int has = seat ? 1 : 0;
    Status status = group.all_gather(&has, sizeof has, have.data());
    called(group, "all_gather");
    if (!status.ok()) return status;
    const View view = group.view();
    if (std::ranges::all_of(view.members, [&](int rank) { return have[rank] == 1; })) return {};
    seat.reset();
    const Scenario& scenario = scenario_of(view);
    try {
      seat = std::make_unique<Seat>(group, scenario);
    } catch (const Error& error) {
      status = {error.code(), error.what(), error.culprit()};
    }
    called(group, "making an exchange");
    if (!status.ok()) return status;
    if (view.number > 1) ++outcome_.num_remade;
    watch_exchange(group, scenario);
    return {};
  }

  // False: this rank ends.
  bool go_on(Group& group) {
    const View before = group.view();
    for (int calls = 0; !dead(group.rank()); ++calls) {
      require(calls < kMostCalls, "survive() did not end");
      const Status status = group.survive();
      called(group, "survive");
      if (dead(group.rank())) return false;
      if (status.ok()) break;
      require(status.code() == Code::kTimeout && case_.has(Fault::kStop),
              "survive: " + status.message());
      if (status.culprit() >= 0 && ranks_[status.culprit()].refused) return false;
      require(is_stopped(status.culprit()),
              "survive names a rank that is not stopped: " + status.message());
    }
    if (dead(group.rank())) return false;
    check_view(group, before);
    return true;
  }

  void check_view(const Group& group, const View& before) {
    const View& now = group.view();
    require(now.number == before.number + 1,
            fmt::format("view {} follows view {}", now.number, before.number));
    const auto [known, fresh] = views_.emplace(now.number, now.members);
    require(known->second == now.members,
            fmt::format("view {} has ranks {} and ranks {}", now.number,
                        fmt::join(known->second, ", "), fmt::join(now.members, ", ")));
    for (const int rank : before.members) {
      const bool in = std::ranges::count(now.members, rank) > 0;
      require(in || dead(rank) || ranks_[rank].gone,
              fmt::format("view {} lacks rank {}, which lives", now.number, rank));
    }
    for (const int rank : now.members)
      require(std::ranges::count(before.members, rank) > 0,
              fmt::format("rank {} came back in view {}", rank, now.number));
  }

  void check_error(const Group& group, const Status& status) {
    const bool late = status.code() == Code::kTimeout && case_.has(Fault::kStop);
    const bool over = status.code() == Code::kPeerLost || status.code() == Code::kBroken;
    require(late || over, status.message());
    const bool names = status.culprit() >= 0 && status.culprit() < group.size();
    // A rank that was stopped may find only that another one reached its deadline.
    require(names || status.code() == Code::kBroken || is_stopped(group.rank()),
            "nobody is named: " + status.message());
    if (status.code() != Code::kPeerLost) return;
    require(dead(status.culprit()) || ranks_[status.culprit()].gone,
            "a rank that lives is called lost: " + status.message());
  }

  // ---- the time that a call took

  void called(int rank) {
    ranks_[rank].told_ns = simulation_.time_ns();
    ranks_[rank].stopped_ns = stopped_ns();
  }

  // Of all ranks: others wait for one that is stopped.
  std::int64_t stopped_ns() const {
    std::int64_t all = 0;
    for (int rank = 0; rank < case_.num_ranks; ++rank) all += simulation_.stopped_ns(rank);
    return all;
  }

  void called(const Group& group, const std::string& what) {
    Rank& one = mine(group);
    if (dead(group.rank())) return;
    const std::int64_t deadline_ns = std::chrono::nanoseconds(case_.deadline).count() + kGraceNs;
    const std::int64_t most_ns = case_.has(Fault::kStop) ? deadline_ns : kPromptNs;
    const std::int64_t took_ns = simulation_.time_ns() - one.told_ns;
    const std::int64_t paused_ns = case_.has(Fault::kStop) ? simulation_.stopped_ns(group.rank())
                                                           : stopped_ns() - one.stopped_ns;
    if (took_ns > most_ns + paused_ns)
      complain(fmt::format("rank {}: {} took {} ms", group.rank(), what, took_ns / 1'000'000));
    simulation_.note("returns", group.view().number);
    if (one.raises) throw Raised();
    const int kind = simulation_.choose(kComputeNs.size(), kComputeRarity);
    if (kind > 0) simulation_.sleep(nullptr, kComputeNs[static_cast<std::size_t>(kind)]);
    called(group.rank());
  }

  // ---- scenarios and flags

  const Scenario& scenario_of(const View& view) {
    const auto [found, fresh] = scenarios_.try_emplace(set_of(view));
    if (fresh) {
      ExchangeConfig config = case_.config;
      if (std::ssize(view.members) < case_.num_ranks) config.expert_ranks = view.members;
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
    watch_.add_exchange(machine_.last_mapped(group.rank()), setup.layout, case_.num_ranks);
  }

  // ---- what happens to them

  bool is_stopped(int rank) const { return rank >= 0 && simulation_.stopped_ns(rank) > 0; }

  void look(int rank) {
    if (watch_.look(outcome_.wrong)) simulation_.progressed();
    const auto due = std::ranges::find_if(blows_, [rank](const ViewsCase::Blow& blow) {
      return blow.rank == rank && blow.turns <= 0;
    });
    for (ViewsCase::Blow& blow : blows_) blow.turns -= blow.rank == rank ? 1 : 0;
    if (due == blows_.end() || simulation_.ended(rank)) return;
    const Fault fault = due->fault;
    blows_.erase(due);
    const std::int64_t now = simulation_.time_ns();
    if (fault == Fault::kPause) return simulation_.stop(rank, now + kStoppedNs);
    if (fault == Fault::kStop) return simulation_.stop(rank, now + kForGoodNs);
    if (fault == Fault::kRaise) {
      ranks_[rank].raises = true;
      return;
    }
    simulation_.kill(rank);
    network_.kill(rank);
    kernel_.kill(rank);
  }

  const ViewsCase& case_;
  Machine machine_;
  Simulation simulation_;
  Network network_;
  Kernel kernel_;
  std::vector<ViewsCase::Blow> blows_;  // those to come
  std::vector<Rank> ranks_;
  std::map<int, Scenario> scenarios_;                // by the ranks that own experts
  std::map<std::uint64_t, std::vector<int>> views_;  // members of those that have begun
  int num_surviving_ = 0;                            // ranks that ended a view by a whim
  FlagWatch watch_;
  ViewsOutcome outcome_;
};

}  // namespace

bool ViewsCase::has(Fault fault) const {
  return std::ranges::any_of(blows, [fault](const Blow& blow) { return blow.fault == fault; });
}

std::string ViewsCase::describe() const {
  std::string text = fmt::format("{} ranks, {} rounds", num_ranks, num_rounds);
  for (const Blow& blow : blows)
    text +=
        fmt::format(", {} of rank {} after {} turns", name_of(blow.fault), blow.rank, blow.turns);
  return text;
}

ViewsCase draw_views(std::uint64_t seed) {
  constexpr std::array kBlows = {Fault::kDeath, Fault::kDeath, Fault::kDeath,
                                 Fault::kRaise, Fault::kPause, Fault::kStop};
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
                           .rank = static_cast<int>(random.below(drawn.num_ranks)),
                           .turns = static_cast<int>(random.below(random.pick(kMostTurns)))});
  drawn.num_rounds = static_cast<int>(random.between(1, 5));
  if (drawn.has(Fault::kStop)) drawn.deadline = std::chrono::milliseconds(400);
  return drawn;
}

ViewsOutcome run_views(const ViewsCase& drawn, bool trace) {
  RandomChoices choices(drawn.seed);
  return ViewsRun(drawn, choices, trace).play();
}

}  // namespace ferry::test
