// Checks, errors and names of ranks that all kinds of rendezvous share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "ferry/status.h"

namespace ferry::internal {

// Lists ranks as in "rank 3" or "ranks 1, 4 to 7 and 9", or as "no rank". `ranks` are in ascending
// order.
std::string rank_list(const std::vector<int>& ranks);

// The error that all ranks receive if `rank` gives up with `error` while the `absent` ranks have
// not connected. If `error` names no culprit, the first absent rank other than `rank` is the
// culprit, and `missing` is added to the text.
Error given_up(const Error& error, int rank, const std::vector<int>& absent,
               const std::string& missing);

// The error of `rank` after its deadline has ended a wait: `late`, or kInterrupted.
Error ended(const Deadline& deadline, int rank, const Error& late);

// Throws Error(kInvalidArgument) unless 0 <= rank < size.
void check_rank(int rank, int size);

// The node of each rank. Ranks with equal keys are of one node, and nodes are numbered in the order
// of their lowest ranks.
std::vector<int> number_nodes(const std::vector<std::string>& keys);

// The number of nodes in `nodes`, which number_nodes() made.
int num_nodes(const std::vector<int>& nodes) noexcept;

// Parses the first 16 hexadecimal digits of the text that `rank` sent. Throws Error(kMismatch) if
// it does not begin with them.
std::uint64_t number_in(const std::string& text, int rank);

// Parses the process id in the text that `rank` sent. Throws Error(kMismatch) if it is not a
// positive number, since a signal to 0 or a negative number goes to other processes.
int pid_in(const std::string& text, int rank);

// The rank whose text is at `place`. `ranks`: the ranks that sent texts, in the order of the texts;
// empty: all ranks.
int sender_of(const std::vector<int>& ranks, std::size_t place) noexcept;

// Compares the sizes that the ranks request, as texts. Throws Error(kMismatch) that names two ranks
// with different sizes. `ranks`: those that sent the texts; empty: all.
void check_same_bytes(const std::vector<std::string>& bytes, const std::vector<int>& ranks = {});

// Each rank sends its problem as a text, which is empty if it has none. Throws Error(kSystem) with
// the first text that is not empty.
void check_no_problem(const std::vector<std::string>& problems, const std::vector<int>& ranks = {});

// The text that a rank sends after it has shared a segment: the size, and the problem if there is
// one. check_shared() makes both checks above for the texts of all ranks; a problem that is the
// loss of a rank is thrown as that.
std::string share_reply(std::size_t bytes, const std::optional<Error>& problem);
void check_shared(const std::vector<std::string>& replies, const std::vector<int>& ranks = {});

}  // namespace ferry::internal
