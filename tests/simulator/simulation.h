// Simulation: ranks as fibers on one thread, and virtual time. A rank runs until it yields or
// sleeps, in a wait of the engine (machine.cc, network.cc, kernel.cc) or between its calls, or
// until it loses the processor where it reads the clock. Everything that happens is an event in one
// queue, so a run follows from its choices.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "simulator/choices.h"
#include "simulator/fiber.h"

namespace ferry::test {

class Simulation {
 public:
  Simulation(Choices& choices, bool trace);
  ~Simulation();
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;
  // The simulation of this process; there is one at a time.
  static Simulation& current();
  static int running_rank() noexcept;  // -1: none, or there is no simulation

  // As Choices::choose(). A dead rank that runs on gets 0.
  int choose(std::size_t options, int rarity);
  bool enumerates() const { return choices_.enumerates(); }
  std::int64_t time_ns() const noexcept { return time_ns_; }
  int running() const noexcept { return running_; }  // the rank; -1: none

  // For the rank that runs: what machine.cc has in place of the operating system.
  std::int64_t now();
  void pause();
  void yield();
  void sleep(const void* key, std::int64_t wait_ns);
  void wake(const void* key);

  // Ranks count from 0. Events run between the steps of ranks.
  void add_rank(std::function<void()> body);
  void at(std::int64_t ns, std::function<void()> event);
  // Called after each step of a rank.
  void after_step(std::function<void(int rank)> look) { after_step_ = std::move(look); }
  // Runs until the bodies of all ranks have returned. When all others have ended, those of dead
  // ranks run on, cut off from everything, to give back what they own. False: the run did not end.
  bool run();
  // A run of more turns than this counts as one that does not end.
  void limit_steps(std::uint64_t most) noexcept { most_steps_ = most; }

  void stop(int rank, std::int64_t until_ns);
  void kill(int rank);
  void slow_down(int rank, int factor) { ranks_[static_cast<std::size_t>(rank)].slow = factor; }
  bool dead(int rank) const {
    const Rank& one = ranks_[static_cast<std::size_t>(rank)];
    return one.dead || one.buried;
  }
  bool ended(int rank) const { return ranks_[static_cast<std::size_t>(rank)].fiber.done(); }
  // How long `rank` has been stopped so far, in all.
  std::int64_t stopped_ns(int rank) const {
    return ranks_[static_cast<std::size_t>(rank)].stopped_ns;
  }

  // To be called when something changed that other ranks may see. In an enumeration a rank that
  // reads the clock may lose the processor only if this was called since it last read the clock.
  void progressed() noexcept { ++version_; }
  std::uint64_t version() const noexcept { return version_; }
  // An event of the trace, which is part of the digest.
  void note(std::string_view what, std::uint64_t a = 0, std::uint64_t b = 0);
  std::uint64_t digest() const noexcept { return digest_; }
  std::uint64_t steps() const noexcept { return steps_; }

 private:
  struct Rank {
    explicit Rank(std::function<void()> body) : fiber(std::move(body)) {}
    Fiber fiber;
    std::uint64_t turn = 0;  // the item of the queue that is its next turn
    const void* key = nullptr;
    int slow = 1;
    bool dead = false, buried = false;  // buried: dead, and runs on to its end
    std::int64_t stopped_until_ns = 0, stopped_ns = 0;
    std::uint64_t seen_version = 0;
  };
  // A turn of a rank, or an event.
  struct Item {
    int rank;
    std::uint64_t turn;
    std::function<void()> event;
  };

  Rank& mine() { return ranks_[static_cast<std::size_t>(running_)]; }
  void enqueue(int rank, std::int64_t at_ns);
  void leave(std::int64_t wait_ns);
  void take_turn(int rank);
  bool all_ended() const;
  bool bury();

  Choices& choices_;
  const bool trace_;
  std::deque<Rank> ranks_;
  std::map<std::pair<std::int64_t, std::uint64_t>, Item> queue_;  // by time, then as they came
  std::function<void(int)> after_step_;
  std::uint64_t num_items_ = 0, steps_ = 0, most_steps_ = 2'000'000, version_ = 1;
  std::int64_t time_ns_ = 1'000'000'000;
  int running_ = -1;
  std::uint64_t digest_ = 0xcbf29ce484222325;
};

// FNV-1a.
std::uint64_t digest_of(const void* bytes, std::size_t count,
                        std::uint64_t seed = 0xcbf29ce484222325) noexcept;

}  // namespace ferry::test
