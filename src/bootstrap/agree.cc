// Owns checks and texts that the rendezvous of threads and of processes share.
#include "bootstrap/agree.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <sstream>
#include <utility>

namespace ferry::internal {

namespace {

// The parts of a text that share_reply() has made.
struct ShareReply {
  std::string bytes;
  int lost = -1;  // the rank whose loss is the problem
  std::string problem;
};

ShareReply read_share_reply(const std::string& reply) {
  ShareReply read;
  std::istringstream words(reply);
  if (!(words >> read.bytes >> read.lost)) return {read.bytes, -1, "its reply is malformed"};
  std::getline(words >> std::ws, read.problem, '\0');
  return read;
}

}  // namespace

std::string rank_list(const std::vector<int>& ranks) {
  if (ranks.empty()) return "no rank";
  std::vector<std::string> runs;
  for (std::size_t first = 0, next = 0; first < ranks.size(); first = next) {
    next = first + 1;
    while (next < ranks.size() && ranks[next] == ranks[next - 1] + 1) ++next;
    if (next - first <= 2) next = first + 1;  // "4, 5" is shorter than "4 to 5"
    runs.push_back(next - first == 1 ? fmt::format("{}", ranks[first])
                                     : fmt::format("{} to {}", ranks[first], ranks[next - 1]));
  }
  std::string text = (ranks.size() == 1 ? "rank " : "ranks ") + runs.front();
  for (std::size_t i = 1; i < runs.size(); ++i)
    text += (i + 1 == runs.size() ? " and " : ", ") + runs[i];
  return text;
}

Error given_up(const Error& error, int rank, const std::vector<int>& absent,
               const std::string& missing) {
  if (error.culprit() >= 0) return error;
  int culprit = -1;
  for (std::size_t i = 0; i < absent.size() && culprit < 0; ++i)
    culprit = absent[i] == rank ? -1 : absent[i];
  return {error.code(), fmt::format("{}; {}", error.what(), missing), culprit};
}

Error ended(const Deadline& deadline, int rank, const Error& late) {
  if (!deadline.interrupted()) return late;
  return {Code::kInterrupted, fmt::format("rank {} was interrupted while it waited", rank), rank};
}

void check_rank(int rank, int size) {
  if (size < 1)
    throw Error(Code::kInvalidArgument,
                fmt::format("a group has at least one rank, size is {}", size));
  if (rank >= 0 && rank < size) return;
  throw Error(Code::kInvalidArgument,
              fmt::format("rank {} is outside of 0 to {} (size is {})", rank, size - 1, size));
}

std::vector<int> number_nodes(const std::vector<std::string>& keys) {
  std::map<std::string, int> numbers;
  std::vector<int> nodes;
  for (const std::string& key : keys)
    nodes.push_back(numbers.try_emplace(key, static_cast<int>(numbers.size())).first->second);
  return nodes;
}

int num_nodes(const std::vector<int>& nodes) noexcept {
  return nodes.empty() ? 0 : *std::max_element(nodes.begin(), nodes.end()) + 1;
}

std::uint64_t number_in(const std::string& text, int rank) {
  constexpr std::size_t kDigits = 16;
  std::uint64_t number = 0;
  const char* end = text.data() + std::min(text.size(), kDigits);
  const auto [stop, error] = std::from_chars(text.data(), end, number, 16);
  if (error == std::errc() && stop == text.data() + kDigits) return number;
  throw Error(Code::kMismatch,
              fmt::format("rank {} sent \"{}\" where {} hexadecimal digits are expected", rank,
                          text.substr(0, kDigits), kDigits),
              rank);
}

int pid_in(const std::string& text, int rank) {
  int pid = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, pid);
  if (error == std::errc() && stop == end && pid > 0) return pid;
  throw Error(
      Code::kMismatch,
      fmt::format("rank {} sent \"{}\" as its process id, need a positive number", rank, text),
      rank);
}

int sender_of(const std::vector<int>& ranks, std::size_t place) noexcept {
  return ranks.empty() ? static_cast<int>(place) : ranks[place];
}

void check_same_bytes(const std::vector<std::string>& bytes, const std::vector<int>& ranks) {
  for (std::size_t place = 1; place < bytes.size(); ++place) {
    if (bytes[place] == bytes[0]) continue;
    const int rank = sender_of(ranks, place);
    throw Error(Code::kMismatch,
                fmt::format("ranks request different shared segments: rank {} of {} bytes, rank {} "
                            "of {} bytes",
                            sender_of(ranks, 0), bytes[0], rank, bytes[place]),
                rank);
  }
}

void check_no_problem(const std::vector<std::string>& problems, const std::vector<int>& ranks) {
  for (std::size_t place = 0; place < problems.size(); ++place) {
    if (problems[place].empty()) continue;
    const int rank = sender_of(ranks, place);
    throw Error(Code::kSystem, fmt::format("rank {}: {}", rank, problems[place]), rank);
  }
}

std::string share_reply(std::size_t bytes, const std::optional<Error>& problem) {
  const bool lost = problem && problem->code() == Code::kPeerLost;
  return fmt::format("{} {} {}", bytes, lost ? problem->culprit() : -1,
                     problem ? problem->what() : "");
}

void check_shared(const std::vector<std::string>& replies, const std::vector<int>& ranks) {
  std::vector<std::string> sizes, problems;
  std::vector<int> lost;
  for (const std::string& reply : replies) {
    ShareReply read = read_share_reply(reply);
    sizes.push_back(std::move(read.bytes));
    problems.push_back(std::move(read.problem));
    lost.push_back(read.lost);
  }
  check_same_bytes(sizes, ranks);
  for (std::size_t place = 0; place < lost.size(); ++place) {
    const bool known = ranks.empty() ? lost[place] >= 0 && lost[place] < std::ssize(replies)
                                     : std::ranges::count(ranks, lost[place]) > 0;
    if (!known) continue;
    throw Error(Code::kPeerLost,
                fmt::format("rank {}: {}", sender_of(ranks, place), problems[place]), lost[place]);
  }
  check_no_problem(problems, ranks);
}

}  // namespace ferry::internal
