// What all kinds of rendezvous check, and how they name ranks. Called by threads.cc, acceptor.cc,
// coordinator.cc and processes.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "ferry/status.h"

namespace ferry::internal {

// "rank 3", "ranks 1, 4 to 7 and 9"; "no rank" when empty. `ranks` ascend.
std::string rank_list(const std::vector<int>& ranks);

// What all are told when `rank` gives up with `error` while `absent` ranks have not come: where the
// error names no culprit it is the first of them, as `missing` says.
Error given_up(const Error& error, int rank, const std::vector<int>& absent,
               const std::string& missing);

// What `rank` says when its deadline has ended a wait: `late`, or that it was interrupted.
Error ended(const Deadline& deadline, int rank, const Error& late);

// Throws Error(kInvalidArgument) unless 0 <= rank < size.
void check_rank(int rank, int size);

// The node of each rank, numbered from 0 by the lowest rank: ranks of equal keys share one.
std::vector<int> number_nodes(const std::vector<std::string>& keys);

// Of `nodes` as number_nodes() makes them.
int num_nodes(const std::vector<int>& nodes) noexcept;

// What `rank` says is a number of 64 bits in 16 hexadecimal digits, which more may follow. Throws
// Error(kMismatch) when it is none.
std::uint64_t number_in(const std::string& text, int rank);

// What `rank` says its process id is. Throws Error(kMismatch) when that is none: signals and pidfds
// of 0 and of negative ones would be of other processes.
int pid_in(const std::string& text, int rank);

// `bytes` of all ranks, as text: throws Error(kMismatch) naming two ranks that ask for different
// segments.
void check_same_bytes(const std::vector<std::string>& bytes);

// Each rank's problem, or an empty text: throws Error(kSystem) with the first.
void check_no_problem(const std::vector<std::string>& problems);

}  // namespace ferry::internal
