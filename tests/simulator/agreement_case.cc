// Draws the case of a run of several nodes from its seed.
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "group/agreement_message.h"
#include "simulator/agreement.h"

namespace ferry::test {

namespace {

constexpr std::array kMostTurns = {20, 100, 300, 1000};
constexpr std::array kBlowsBetweenNodes = {
    Fault::kDeath, Fault::kDeath, Fault::kDeath, Fault::kDeath, Fault::kRaise,  Fault::kPause,
    Fault::kStop,  Fault::kCut,   Fault::kCut,   Fault::kCut,   Fault::kOutage, Fault::kPartition};

}  // namespace

bool AgreementCase::has(Fault fault) const {
  return std::ranges::any_of(blows, [fault](const Blow& blow) { return blow.fault == fault; });
}

bool AgreementCase::loses_a_link() const {
  return std::ranges::any_of(
      blows, [](const Blow& blow) { return blow.of_link() && blow.fault != Fault::kOutage; });
}

// Equal on all members of the view.
bool AgreementCase::remakes_in(std::uint64_t view) const {
  return remakes && view > 1 && Random(seed, 6100 + view).one_in(2);
}

std::string AgreementCase::describe() const {
  std::string text =
      fmt::format("{}{}, {} rounds", nodes.topology, one_host ? ", one host" : "", num_rounds);
  if (remakes) text += ", exchanges made in later views";
  for (const Blow& blow : blows) {
    text += fmt::format(", {} of rank {} after {} turns{}", name_of(blow.fault), blow.rank,
                        blow.turns, blow.in_survive ? " in survive()" : "");
    if (blow.message >= 0) text += fmt::format(" and message {}", blow.message);
    if (blow.of_link())
      text += fmt::format(" (to rank {}{})", blow.peer, blow.one_way ? ", one way" : "");
    if (blow.fault == Fault::kCut && !blow.of_link())
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

// In half of the cases one link or two are struck, half of the time without other blows. In a third
// of all cases exchanges are made in later views. The choices have a random stream of their own, so
// that all other choices of a seed stay the same.
void draw_links(AgreementCase& drawn) {
  constexpr std::array kOfLinks = {Fault::kCut, Fault::kCut, Fault::kCut, Fault::kOutage,
                                   Fault::kPartition};
  Random random(drawn.seed, 6006);
  drawn.remakes = random.one_in(3);
  if (random.one_in(2)) return;
  if (random.one_in(2)) drawn.blows.clear();
  const std::vector<int>& nodes = drawn.nodes.of_rank;
  for (std::int64_t left = random.between(1, 2); left > 0; --left) {
    AgreementCase::Blow blow{.fault = random.pick(kOfLinks),
                             .rank = static_cast<int>(random.below(drawn.num_ranks())),
                             .turns = static_cast<int>(random.below(random.pick(kMostTurns))),
                             .in_survive = random.one_in(3)};
    do {
      blow.peer = static_cast<int>(random.below(drawn.num_ranks()));
    } while (nodes[blow.peer] == nodes[blow.rank]);
    blow.one_way = random.one_in(2);
    drawn.blows.push_back(blow);
  }
}

// In a third of the cases a rank dies, or its node is cut off, when it sends a message of an
// agreement. Rank 0 is drawn most, since one rank proposes, mostly the speaker of the lowest node.
void draw_message(AgreementCase& drawn) {
  using What = internal::AgreementMessage::What;
  constexpr std::array kKinds = {What::kPrepare,  What::kPromise, What::kAccept, What::kAccept,
                                 What::kAccepted, What::kDecided, What::kDecided};
  Random random(drawn.seed, 6007);
  if (!random.one_in(3)) return;
  const int last = drawn.num_ranks() - 1;
  const int rank = random.one_in(2) ? 0 : static_cast<int>(random.between(0, last));
  AgreementCase::Blow blow{
      .fault = random.one_in(2) ? Fault::kDeath : Fault::kCut, .rank = rank, .turns = 0};
  blow.message = static_cast<int>(random.pick(kKinds));
  blow.part = 1 << drawn.nodes.of_rank[rank];
  blow.other = ((2 << drawn.nodes.of_rank.back()) - 1) & ~blow.part;
  drawn.blows.push_back(blow);
}

}  // namespace

AgreementCase draw_agreement(std::uint64_t seed, bool more) {
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
                             .rank = static_cast<int>(random.below(drawn.num_ranks())),
                             .turns = static_cast<int>(random.below(random.pick(kMostTurns))),
                             .in_survive = random.one_in(2)};
    if (blow.in_survive)
      blow.turns = static_cast<int>(random.below(random.pick(kMostTurnsInSurvive)));
    if (blow.fault == Fault::kCut) draw_cut(blow, static_cast<int>(sizes.size()), random);
    drawn.blows.push_back(blow);
  }
  drawn.num_rounds = static_cast<int>(random.between(1, 5));
  if (more) draw_links(drawn);
  if (more) draw_message(drawn);
  if (drawn.remakes) drawn.config.num_experts = 60;  // equally many for each number of members
  if (drawn.has(Fault::kStop) || drawn.has(Fault::kPartition))
    drawn.deadline = std::chrono::milliseconds(400);
  return drawn;
}

}  // namespace ferry::test
