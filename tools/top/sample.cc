// Finds the memfds of groups among the open files of processes. They are read with pread, which
// neither maps nor creates their pages.
#include "tools/top/sample.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>

#include "base/clock.h"
#include "base/descriptor.h"
#include "bootstrap/hello.h"
#include "group/counters.h"
#include "tools/json_limits.h"
#include "tools/refuse.h"
#include "tools/text.h"

namespace ferry::tools {
namespace {

namespace fs = std::filesystem;
using internal::CountersHead;
using internal::kCounterNames;
using internal::kNumCounters;
using Words = std::vector<std::uint64_t>;

constexpr std::uint64_t kMostRanks = 1 << 16;
constexpr std::uint64_t kMostWords = 1 << 22;  // the limit for the rows of one segment: 32 MiB
// Enough for several groups with that many words.
constexpr std::size_t kMostLineBytes = std::size_t{256} << 20;

// A segment that some processes have open.
struct Found {
  internal::Descriptor file;
  // The folders in /proc of the processes that have the segment open, by their process numbers
  // inside their containers.
  std::map<std::uint64_t, std::string> holders;
};

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Returns the number of a process inside its container, which differs from its number outside.
// Returns 0 if it is unknown.
std::uint64_t number_inside(const std::string& folder) {
  const std::string status = contents(folder + "/status");
  const std::size_t at = status.find("NSpid:");
  if (at == std::string::npos) return 0;
  std::istringstream numbers(status.substr(at + 6, status.find('\n', at) - at - 6));
  std::uint64_t number = 0;
  while (numbers >> number) {
  }
  return number;
}

void add_files_of(const std::string& folder, std::map<std::pair<dev_t, ino_t>, Found>& all) {
  std::error_code refused;
  for (const auto& entry : fs::directory_iterator(folder + "/fd", refused)) {
    std::error_code gone;
    if (!fs::read_symlink(entry.path(), gone).string().starts_with("/memfd:ferry")) continue;
    internal::Descriptor file(open(entry.path().c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat what {};
    // Any user can make such a file, and root can read all files. So only files of this user are
    // read.
    if (!file || fstat(file.fd(), &what) != 0 || what.st_uid != geteuid()) continue;
    Found& found = all[{what.st_dev, what.st_ino}];
    found.file = std::move(file);
    found.holders.emplace(number_inside(folder), folder);
  }
}

std::vector<Found> segments() {
  std::map<std::pair<dev_t, ino_t>, Found> all;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator("/proc", none)) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") == std::string::npos)
      add_files_of(entry.path().string(), all);
  }
  std::vector<Found> segments;
  for (auto& [key, found] : all) segments.push_back(std::move(found));
  return segments;
}

template <typename Value>
bool read_at(const Found& found, std::size_t offset, Value* values, std::size_t count) {
  const auto bytes = static_cast<ssize_t>(count * sizeof(Value));
  return pread(found.file.fd(), values, count * sizeof(Value), static_cast<off_t>(offset)) == bytes;
}

struct Head {
  std::uint64_t magic, group, num_ranks, rows_offset, row_bytes;
};
static_assert(offsetof(CountersHead, group) == offsetof(Head, group) &&
              offsetof(CountersHead, row_bytes) == offsetof(Head, row_bytes));

// The program of a process, such as "python3 train.py --steps 9".
std::string program_of(const std::string& folder) {
  std::string line = contents(folder + "/cmdline");
  const std::size_t name = line.substr(0, line.find('\0')).rfind('/');
  if (name != std::string::npos) line.erase(0, name + 1);
  while (!line.empty() && line.back() == '\0') line.pop_back();
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return std::iscntrl(c); }, ' ');
  return line.size() > 60 ? line.substr(0, 57) + "..." : line;
}

std::uint64_t resident_bytes(const std::string& folder) {
  std::istringstream pages(contents(folder + "/statm"));
  std::uint64_t all = 0, resident = 0;
  pages >> all >> resident;
  return resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

// Whether the head of a file describes a segment of counters. Any process may have a file with such
// a name, so each field is checked.
bool fits(const Head& head, const struct stat& file) {
  const auto bytes = static_cast<std::uint64_t>(file.st_size);
  return head.magic == CountersHead::kMagic && head.num_ranks <= kMostRanks &&
         head.row_bytes >= (kNumCounters + head.num_ranks) * sizeof(std::uint64_t) &&
         head.rows_offset <= bytes &&
         head.row_bytes <= (bytes - head.rows_offset) / std::max<std::uint64_t>(head.num_ranks, 1);
}

// The number of ranks of a segment that are read. A group of 2,000 ranks is read whole.
std::uint64_t most_rows(const Head& head) {
  return std::min(head.num_ranks, kMostWords / (kNumCounters + head.num_ranks));
}

// Reads the row of a rank. Ranks of other nodes have no row in this segment.
std::optional<RankSample> rank_of(const Found& found, const Head& head, std::uint64_t rank) {
  const std::size_t at = head.rows_offset + rank * head.row_bytes;
  std::uint64_t pid = 0;
  if (!read_at(found, at, &pid, 1) || pid == 0) return std::nullopt;
  Words row(kNumCounters + head.num_ranks);
  if (!read_at(found, at, row.data(), row.size())) return std::nullopt;
  RankSample sample{.host = internal::host_name(),
                    .program = "",
                    .time_ns = internal::now_ns(),
                    .totals = {row.begin(), row.begin() + kNumCounters},
                    .wait_ns = {row.begin() + kNumCounters, row.end()}};
  const auto holder = found.holders.find(row[0]);
  sample.ended = holder == found.holders.end();
  if (sample.ended) return sample;
  sample.program = program_of(holder->second);
  sample.resident_bytes = resident_bytes(holder->second);
  return sample;
}

}  // namespace

Sample look_here() {
  Sample sample;
  for (const Found& found : segments()) {
    Head head{};
    struct stat file {};
    if (!read_at(found, 0, &head, 1) || fstat(found.file.fd(), &file) != 0 || !fits(head, file))
      continue;
    GroupSample& group = sample[fmt::format("{:016x}", head.group)];
    group.num_ranks = static_cast<int>(head.num_ranks);
    for (std::uint64_t rank = 0; rank < head.num_ranks && group.ranks.size() < most_rows(head);
         ++rank) {
      if (auto seen = rank_of(found, head, rank))
        group.ranks.emplace(static_cast<int>(rank), std::move(*seen));
    }
  }
  return sample;
}

nlohmann::ordered_json to_json(const RankSample& rank) {
  nlohmann::ordered_json totals;
  for (int i = 0; i < kNumCounters; ++i) totals[kCounterNames[i].name] = rank.totals[i];
  return {{"host", rank.host},
          {"program", rank.program},
          {"time_ns", rank.time_ns},
          {"ended", rank.ended},
          {"resident_bytes", rank.resident_bytes},
          {"totals", totals},
          {"wait_ns", rank.wait_ns}};
}

void add_received(Sample& sample, const std::string& line) {
  try {
    check_json("its line", line, kMostLineBytes);
    const auto reply = nlohmann::ordered_json::parse(line);
    for (const auto& received : reply.at("groups")) {
      GroupSample& group = sample[received.at("group")];
      group.num_ranks = received.at("num_ranks");
      for (const auto& one : received.at("ranks")) {
        RankSample rank{.host = one.at("host"),
                        .program = one.at("program"),
                        .time_ns = one.at("time_ns"),
                        .ended = one.at("ended"),
                        .resident_bytes = one.at("resident_bytes"),
                        .totals = {},
                        .wait_ns = one.at("wait_ns")};
        for (const auto& named : kCounterNames)
          rank.totals.push_back(one.at("totals").at(named.name));
        if (rank.wait_ns.size() != static_cast<std::size_t>(group.num_ranks))
          refuse("another number of ranks");
        group.ranks[one.at("rank")] = std::move(rank);
      }
    }
  } catch (const std::exception& error) {
    refuse("this is not a reply of ferry top: {}", error.what());
  }
}

}  // namespace ferry::tools
