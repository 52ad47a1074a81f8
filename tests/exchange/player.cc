// Plays a scenario. The order of operations is drawn from the scenario's seed, which is equal on
// all ranks; everything that a rank may decide alone is drawn from the seed and its rank.
#include "player.h"

#include <cstring>
#include <optional>
#include <thread>

namespace ferry::test {
namespace {

// One operation of the script: a dispatch (combine < 0) or a combine of a round.
struct Step {
  int round = 0;
  int combine = -1;
};

// Every combine comes after its dispatch. With `mixed` combines wait for later rounds, so that
// operations overlap.
std::vector<Step> draw_script(const Scenario& scenario, bool mixed) {
  Random random(scenario.seed, 77);
  std::vector<Step> script;
  std::vector<Step> waiting;  // combines whose dispatch is in the script
  const auto move_one = [&] {
    const std::size_t at = mixed ? random.below(static_cast<std::int64_t>(waiting.size())) : 0;
    script.push_back(waiting[at]);
    waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(at));
  };
  for (int round = 0; round < static_cast<int>(scenario.rounds.size()); ++round) {
    script.push_back({round, -1});
    for (int i = 0; i < static_cast<int>(scenario.rounds[round].combines.size()); ++i)
      waiting.push_back({round, i});
    while (!waiting.empty() && !(mixed && random.one_in(2))) move_one();
  }
  while (!waiting.empty()) move_one();
  return script;
}

// Cuts off the end of the script, from which on the rank takes part in nothing. For silent
// scenarios.
void cut_short(std::vector<Step>& script, const Scenario& scenario, int rank) {
  while (!script.empty() && !scenario.rounds[script.back().round].takes_part(rank))
    script.pop_back();
}

class Player {
 public:
  Player(Exchange& exchange, int rank, const Scenario& scenario, const PlayOptions& options)
      : exchange_(exchange),
        rank_(rank),
        scenario_(scenario),
        options_(options),
        random_(scenario.seed, 1000 + static_cast<std::uint64_t>(rank)),
        rounds_(scenario.rounds.size()) {}

  void play() {
    std::vector<Step> script = draw_script(scenario_, options_.halves);
    if (scenario_.silent) cut_short(script, scenario_, rank_);
    for (const Step& step : script) {
      dawdle();
      make_ready(step);
      start(step);
      overwrite_where_allowed();
      while (!in_flight_.empty() && random_.one_in(3)) finish_any();
    }
    while (!in_flight_.empty()) finish_any();
    // Views that were kept until now still hold what they held.
    for (std::size_t i = 0; i < rounds_.size(); ++i) {
      if (rounds_[i].received && !rounds_[i].overwritten)
        check_round(static_cast<int>(i), " at the end");
    }
  }

 private:
  struct PlayedRound {
    std::optional<Received> received;
    Handle handle;
    bool overwritten = false;  // expert rows were written over the received rows
    int combines_left = 0;
  };
  struct Pending {
    Step step;
    Operation operation;
    std::unique_ptr<CombineCall> call;
  };

  std::string name(const Step& step) const {
    const std::string round = "round " + std::to_string(step.round);
    if (step.combine < 0) return "dispatch of " + round;
    const CombineCase& combine = scenario_.rounds[step.round].combines[step.combine];
    return "combine " + std::to_string(step.combine) + " of " + round +
           (combine.from_tensors ? ", from tensors" : "");
  }

  void dawdle() {
    if (!options_.delays) return;
    if (random_.one_in(4)) std::this_thread::yield();
    if (random_.one_in(12))
      std::this_thread::sleep_for(std::chrono::microseconds(random_.below(300)));
  }

  // Makes room for one more operation in flight, and receives what the step builds on.
  void make_ready(const Step& step) {
    const int needed = step.combine < 0 ? scenario_.rounds[step.round].cached_from : step.round;
    while (!in_flight_.empty() && (static_cast<int>(in_flight_.size()) >= scenario_.config.depth ||
                                   (needed >= 0 && !rounds_[needed].handle))) {
      finish_any();
    }
  }

  void start(const Step& step) {
    if (step.combine < 0) {
      start_dispatch(step);
    } else {
      start_combine(step);
    }
  }

  void start_dispatch(const Step& step) {
    const Round& round = scenario_.rounds[step.round];
    DispatchCall call(scenario_, round, rank_, random_);
    if (round.cached_from >= 0) call.args().cached = rounds_[round.cached_from].handle;
    if (options_.halves && random_.one_in(2)) {
      Pending pending{step, {}, nullptr};
      options_.check(exchange_.dispatch_send(call.args(), pending.operation),
                     name(step) + ", send");
      in_flight_.push_back(std::move(pending));
      return;
    }
    Received received;
    options_.check(exchange_.dispatch(call.args(), received), name(step));
    take(step, std::move(received));
  }

  void start_combine(const Step& step) {
    const Round& round = scenario_.rounds[step.round];
    PlayedRound& played = rounds_[step.round];
    // Peers may still read a received buffer for an earlier combine, so only the first may
    // overwrite it.
    const bool first = played.combines_left == static_cast<int>(round.combines.size());
    const bool may_overwrite = first && played.received && !is_in_flight(step.round);
    Received* const memory = may_overwrite && random_.one_in(2) ? &*played.received : nullptr;
    auto call =
        std::make_unique<CombineCall>(exchange_, scenario_, round, round.combines[step.combine],
                                      rank_, played.handle, memory, random_);
    played.overwritten = played.overwritten || memory != nullptr;
    --played.combines_left;
    if (options_.halves && random_.one_in(2)) {
      Pending pending{step, {}, std::move(call)};
      options_.check(exchange_.combine_send(pending.call->args(), pending.operation),
                     name(step) + ", send");
      pending.call->overwrite_what_was_copied();
      in_flight_.push_back(std::move(pending));
      return;
    }
    options_.check(exchange_.combine(call->args()), name(step));
    call->check(name(step));
    maybe_release(step.round);
  }

  // Rows that were combined in place are overwritten as soon as may_write() says that all ranks
  // have read them. A rank that has not read them would compute a wrong sum.
  void overwrite_where_allowed() {
    for (PlayedRound& played : rounds_) {
      if (!played.received || !played.overwritten) continue;
      bool may = false;
      const Rows rows = played.received->rows();
      const Status asked = exchange_.may_write(rows.data, may);
      const std::size_t bytes = rows.num_rows * rows.hidden * element_bytes(rows.dtype);
      if (asked.ok() && may && bytes > 0) std::memset(played.received->data, 0x5c, bytes);
    }
  }

  bool is_in_flight(int round) const {
    for (const Pending& pending : in_flight_) {
      if (pending.step.round == round && pending.step.combine >= 0) return true;
    }
    return false;
  }

  // Receives one of the operations in flight, in an order of this rank's own.
  void finish_any() {
    const std::size_t at = random_.below(static_cast<std::int64_t>(in_flight_.size()));
    Pending pending = std::move(in_flight_[at]);
    in_flight_.erase(in_flight_.begin() + static_cast<std::ptrdiff_t>(at));
    dawdle();
    // A poll need not succeed as long as a peer waits for this rank, so it is tried a few times
    // only.
    for (int i = 0; i < 3 && random_.one_in(2); ++i) {
      if (exchange_.poll(pending.operation)) break;
      std::this_thread::yield();
    }
    if (pending.step.combine < 0) {
      Received received;
      options_.check(exchange_.dispatch_recv(pending.operation, received),
                     name(pending.step) + ", receive");
      take(pending.step, std::move(received));
      return;
    }
    options_.check(exchange_.combine_recv(pending.operation), name(pending.step) + ", receive");
    pending.call->check(name(pending.step));
    maybe_release(pending.step.round);
  }

  void take(const Step& step, Received received) {
    PlayedRound& played = rounds_[step.round];
    played.handle = received.handle;
    played.received = std::move(received);
    played.combines_left = static_cast<int>(scenario_.rounds[step.round].combines.size());
    check_round(step.round, "");
    maybe_release(step.round);
  }

  void check_round(int round, const std::string& when) {
    check_received(scenario_, scenario_.rounds[round], rank_, *rounds_[round].received,
                   "dispatch of round " + std::to_string(round) + when);
  }

  // Releases the view of a round early, in time, or never.
  void maybe_release(int round) {
    PlayedRound& played = rounds_[round];
    if (is_in_flight(round) || random_.one_in(3)) return;
    if (played.combines_left == 0 || random_.one_in(4)) played.received.reset();
  }

  Exchange& exchange_;
  const int rank_;
  const Scenario& scenario_;
  const PlayOptions options_;
  Random random_;
  std::vector<PlayedRound> rounds_;
  std::vector<Pending> in_flight_;
};

}  // namespace

void play(Exchange& exchange, int rank, const Scenario& scenario, const PlayOptions& options) {
  Player(exchange, rank, scenario, options).play();
}

void play(Group& group, const Scenario& scenario, const PlayOptions& options) {
  Exchange exchange(group, scenario.config);
  play(exchange, group.rank(), scenario, options);
}

void run_scenario(Mode mode, const Scenario& scenario, const PlayOptions& options) {
  GroupOptions group_options;
  group_options.deadline = std::chrono::seconds(60);
  group_options.topology = scenario.nodes.topology;
  run_ranks(
      mode, scenario.num_ranks, [&](Group group) { play(group, scenario, options); },
      scenario.describe() + " " + mode_name(mode), group_options);
}

}  // namespace ferry::test
