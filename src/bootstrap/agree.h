// Checks, errors and names of ranks that all kinds of rendezvous share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "ferry/status.h"

namespace ferry::internal {

// "rank 3", "ranks 1, 4 to 7 and 9"; "no rank" when empty. `ranks` ascend.
std::string rank_list(const std::vector<int>& ranks);

// The error that all ranks receive when `rank` gives up with `error` while the `absent` ranks have
// not come. Where `error` names no culprit, the culprit is the first of them, and the text of
// `missing` follows.
Error given_up(const Error& error, int rank, const std::vector<int>& absent,
               const std::string& missing);

// The error of `rank` when its deadline has ended a wait: `late`, or kInterrupted.
Error ended(const Deadline& deadline, int rank, const Error& late);

// Throws Error(kInvalidArgument) unless 0 <= rank < size.
void check_rank(int rank, int size);

// The node of each rank, numbered from 0 by the lowest rank: ranks of equal keys share one.
std::vector<int> number_nodes(const std::vector<std::string>& keys);

// The number of nodes in `nodes`, which number_nodes() made.
int num_nodes(const std::vector<int>& nodes) noexcept;

// The 64-bit number in the first 16 hexadecimal digits of the text that `rank` sent. Throws
// Error(kMismatch) when there is none.
std::uint64_t number_in(const std::string& text, int rank);

// The process id in the text that `rank` sent. Throws Error(kMismatch) when it is not a positive
// number: 0 and negative numbers would signal other processes.
int pid_in(const std::string& text, int rank);

// `bytes` of all ranks, as text: throws Error(kMismatch) naming two ranks that request different
// segments.
void check_same_bytes(const std::vector<std::string>& bytes);

// Each rank's problem, or an empty text: throws Error(kSystem) with the first.
void check_no_problem(const std::vector<std::string>& problems);

}  // namespace ferry::internal
