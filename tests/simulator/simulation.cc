#include "simulator/simulation.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>

namespace ferry::test {

namespace {

// How long things take: in the ordinary course (first), and when they are disturbed.
constexpr std::int64_t kNowNs = 25, kPauseNs = 40;
constexpr std::array<std::int64_t, 4> kYieldsNs = {20'000, 1'000, 100'000, 400'000};
constexpr std::array<std::int64_t, 5> kAwayNs = {0, 30'000, 300'000, 2'000'000, 8'000'000};
constexpr int kYieldRarity = 8, kAwayRarity = 60, kLateRarity = 16;

Simulation* the_one = nullptr;

}  // namespace

std::uint64_t digest_of(const void* bytes, std::size_t count, std::uint64_t seed) noexcept {
  const auto* const letters = static_cast<const unsigned char*>(bytes);
  for (std::size_t i = 0; i < count; ++i) seed = (seed ^ letters[i]) * 0x100000001b3ULL;
  return seed;
}

Simulation::Simulation(Choices& choices, bool trace) : choices_(choices), trace_(trace) {
  the_one = this;
}

Simulation::~Simulation() { the_one = nullptr; }

Simulation& Simulation::current() { return *the_one; }
int Simulation::running_rank() noexcept { return the_one == nullptr ? -1 : the_one->running_; }

int Simulation::choose(std::size_t options, int rarity) {
  if (running_ >= 0 && mine().buried) return 0;
  return choices_.choose(static_cast<int>(options), rarity);
}

std::int64_t Simulation::now() {
  if (running_ < 0) return time_ns_;
  Rank& rank = mine();
  time_ns_ += kNowNs * rank.slow;
  const bool same = rank.seen_version == version_;
  rank.seen_version = version_;
  if (enumerates() && same) return time_ns_;
  const int away = choose(enumerates() ? 3 : kAwayNs.size(), kAwayRarity);
  if (away > 0) {
    note("loses the processor", static_cast<std::uint64_t>(away));
    leave(kAwayNs[static_cast<std::size_t>(away)] * rank.slow);
  }
  return time_ns_;
}

void Simulation::pause() { time_ns_ += kPauseNs * mine().slow; }

void Simulation::yield() {
  const int kind = enumerates() ? 0 : choose(kYieldsNs.size(), kYieldRarity);
  leave(kYieldsNs[static_cast<std::size_t>(kind)] * mine().slow);
}

void Simulation::sleep(const void* key, std::int64_t wait_ns) {
  mine().key = key;
  leave(wait_ns);
}

void Simulation::wake(const void* key) {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].key != key) continue;
    ranks_[rank].key = nullptr;
    const int late = enumerates() ? 0 : choose(kYieldsNs.size(), kLateRarity);
    enqueue(static_cast<int>(rank), time_ns_ + kYieldsNs[static_cast<std::size_t>(late)]);
  }
}

void Simulation::add_rank(std::function<void()> body) {
  ranks_.emplace_back(std::move(body));
  enqueue(static_cast<int>(ranks_.size()) - 1, time_ns_);
}

void Simulation::at(std::int64_t ns, std::function<void()> event) {
  queue_.emplace(std::pair(std::max(ns, time_ns_), ++num_items_), Item{-1, 0, std::move(event)});
}

void Simulation::enqueue(int rank, std::int64_t at_ns) {
  ranks_[static_cast<std::size_t>(rank)].turn = ++num_items_;
  queue_.emplace(std::pair(at_ns, num_items_), Item{rank, num_items_, {}});
}

void Simulation::leave(std::int64_t wait_ns) {
  enqueue(running_, time_ns_ + wait_ns);
  const int error = errno;
  mine().fiber.leave();
  errno = error;
}

bool Simulation::run() {
  while (!all_ended() || bury()) {
    if (queue_.empty() || steps_ > most_steps_) return false;
    const auto first = queue_.begin();
    const std::int64_t at_ns = first->first.first;
    const Item item = std::move(first->second);
    queue_.erase(first);
    time_ns_ = std::max(time_ns_, at_ns);
    if (item.rank < 0) {
      item.event();
    } else if (ranks_[static_cast<std::size_t>(item.rank)].turn == item.turn) {
      take_turn(item.rank);
    }
  }
  return true;
}

void Simulation::take_turn(int number) {
  Rank& rank = ranks_[static_cast<std::size_t>(number)];
  if (rank.dead) return;
  if (rank.stopped_until_ns > time_ns_) return enqueue(number, rank.stopped_until_ns);
  rank.key = nullptr;
  running_ = number;
  rank.fiber.resume();
  running_ = -1;
  ++steps_;
  after_step_(number);
}

bool Simulation::all_ended() const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [](const Rank& rank) { return rank.dead || rank.fiber.done(); });
}

// Lets dead ranks run on to give back what they own. Returns false when none is left.
bool Simulation::bury() {
  bool any = false;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!ranks_[rank].dead || ranks_[rank].fiber.done()) continue;
    ranks_[rank].dead = false;
    ranks_[rank].buried = true;
    enqueue(static_cast<int>(rank), time_ns_);
    any = true;
  }
  return any;
}

void Simulation::stop(int rank, std::int64_t until_ns) {
  Rank& stopped = ranks_[static_cast<std::size_t>(rank)];
  stopped.stopped_until_ns = until_ns;
  stopped.stopped_ns += until_ns - time_ns_;
  note("is stopped", static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(until_ns));
}

void Simulation::kill(int rank) {
  ranks_[static_cast<std::size_t>(rank)].dead = true;
  note("dies", static_cast<std::uint64_t>(rank));
}

void Simulation::note(std::string_view what, std::uint64_t a, std::uint64_t b) {
  const std::array<std::uint64_t, 4> numbers = {static_cast<std::uint64_t>(time_ns_),
                                                static_cast<std::uint64_t>(running_ + 1), a, b};
  digest_ = digest_of(what.data(), what.size(), digest_);
  digest_ = digest_of(numbers.data(), sizeof numbers, digest_);
  if (!trace_) return;
  std::printf("%12.3f us  rank %2d  %.*s %llx %llx\n",
              static_cast<double>(time_ns_ - 1'000'000'000) / 1000, running_,
              static_cast<int>(what.size()), what.data(), static_cast<unsigned long long>(a),
              static_cast<unsigned long long>(b));
}

}  // namespace ferry::test
