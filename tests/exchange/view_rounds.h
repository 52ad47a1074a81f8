// Rounds for the views of a group: for each set of ranks a dispatch and a combine of these ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "seat.h"

namespace ferry::test {

// The ranks of a view as bits.
int set_of(const View& view);

// Round s is one of the ranks in the set of bits s. Its tokens go to experts of these ranks. Only
// sets of ranks that own experts can be played. Every owner has equally many experts.
Scenario scenario_of_sets(const Nodes& nodes, const ExchangeConfig& config, std::uint64_t seed);
// On the nodes of the test.
Scenario scenario_of_sets(int num_ranks, const ExchangeConfig& config, std::uint64_t seed);

// The same for an exchange whose experts are those of the ranks in `members`.
Scenario scenario_among(int num_ranks, ExchangeConfig config, const std::vector<int>& members,
                        std::uint64_t seed);

// Plays the round of the ranks of the view, which the calls do not name. Throws Failure if outputs
// do not equal the oracle.
Status play_view(const Group& group, Seat& seat);
// The same again and again.
Status play_until_error(const Group& group, Seat& seat);

// survive() must begin this view.
void survive(Group& group, std::uint64_t number, int set);

}  // namespace ferry::test
