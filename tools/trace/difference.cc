#include "tools/trace/difference.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <sstream>
#include <tuple>

#include "tools/refuse.h"
#include "tools/trace/run_files.h"

namespace ferry::tools {

using internal::TraceKind;
using internal::TracePart;
using internal::TraceRecord;

namespace {

using Words = std::vector<std::uint32_t>;

bool of_dispatch(TraceKind kind) {
  return kind == TraceKind::kDispatchSent || kind == TraceKind::kDispatchReceived;
}

std::string where(const TraceRecord& record) {
  return fmt::format("{} {} of exchange {}", of_dispatch(record.kind) ? "dispatch" : "combine",
                     record.number, record.exchange);
}

std::string_view name_of(TracePart part) {
  return internal::kTracePartNames[static_cast<std::size_t>(part)];
}

// One half of an operation, which both runs recorded.
struct Pair {
  const RankTrace& a_run;
  const TraceEntry &a, &b;
};

// "source rank 1, token 5, k 2" for the words of a row received.
std::string source_text(const Words& words, std::size_t row) {
  return fmt::format("rank {}, token {}, k {}", static_cast<int>(words[4 * row]),
                     static_cast<int>(words[4 * row + 1]), static_cast<int>(words[4 * row + 2]));
}

// Names a row of the outputs in a combine by the row that its dispatch received.
std::string output_text(const Pair& pair, std::size_t row) {
  const TraceRecord& record = pair.a.record;
  const TraceEntry* dispatch =
      pair.a_run.find(TraceKind::kDispatchReceived, record.exchange, record.route);
  const Words words = dispatch ? dispatch->words(TracePart::kRowsReceived) : Words();
  if (words.size() < 4 * (row + 1)) return fmt::format("output row {}", row);
  return fmt::format("the output for {}", source_text(words, row));
}

std::string values_text(TracePart part, std::uint32_t a, std::uint32_t b) {
  if (part == TracePart::kIds)
    return fmt::format(": {} in A, {} in B", static_cast<int>(a), static_cast<int>(b));
  if (part == TracePart::kWeights)
    return fmt::format(": {} in A, {} in B", std::bit_cast<float>(a), std::bit_cast<float>(b));
  return "";
}

std::string row_text(const Words& a, const Words& b, std::size_t row) {
  const std::string in_a = source_text(a, row), in_b = source_text(b, row);
  if (in_a != in_b) return fmt::format("row {}: from {} in A, from {} in B", row, in_a, in_b);
  return fmt::format("row {}, from {}", row, in_a);
}

std::string element_text(const Pair& pair, TracePart part, std::size_t i, const Words& a,
                         const Words& b) {
  const std::size_t top_k = pair.a.record.top_k;
  if (part == TracePart::kIds || part == TracePart::kWeights)
    return fmt::format("token {}, k {}{}", i / top_k, i % top_k, values_text(part, a[i], b[i]));
  if (part == TracePart::kRowsReceived) return row_text(a, b, i);
  if (part == TracePart::kRowsSent && pair.a.record.kind == TraceKind::kCombineSent)
    return output_text(pair, i);
  return fmt::format("token {}", i);
}

// Names the first element of a part that differs.
std::string part_text(const Pair& pair, TracePart part, std::size_t position) {
  const Words a = pair.a.words(part), b = pair.b.words(part);
  const std::size_t step = part == TracePart::kRowsReceived ? 4 : 1;
  const std::size_t count = std::min(a.size(), b.size()) / step;
  std::size_t first = count, differ = 0;
  for (std::size_t i = count; i-- > 0;) {
    if (std::equal(&a[i * step], &a[i * step] + step, &b[i * step])) continue;
    first = i, ++differ;
  }
  if (first == count)
    return fmt::format("{} (no detail of both was recorded; the record is number {})",
                       name_of(part), position);
  return fmt::format("{} of {} ({} of {} differ)", name_of(part),
                     element_text(pair, part, first, a, b), differ, count);
}

std::string shape_text(const TraceRecord& record) {
  return of_dispatch(record.kind) && record.kind == TraceKind::kDispatchReceived
             ? fmt::format("{} rows", record.rows)
             : fmt::format("{} tokens, top_k {}, {} rows", record.tokens, record.top_k,
                           record.rows);
}

bool same_shape(const TraceRecord& a, const TraceRecord& b) {
  return a.tokens == b.tokens && a.top_k == b.top_k && a.rows == b.rows;
}

// Writes the difference between two records of one half to `difference`. Returns false if there is
// none.
bool compare(const Pair& pair, RankDifference& difference) {
  const TraceRecord &a = pair.a.record, &b = pair.b.record;
  difference.where = where(a);
  difference.part = -1;
  if (!same_shape(a, b)) {
    difference.what = fmt::format("{} in A, {} in B", shape_text(a), shape_text(b));
    return true;
  }
  for (std::size_t i = 0; i < a.digests.size(); ++i) {
    const TracePart part = static_cast<TracePart>(i);
    if (a.digests[i] == b.digests[i]) continue;
    difference.part = static_cast<int>(i);
    difference.what =
        pair.a.has(part) && pair.b.has(part)
            ? part_text(pair, part, difference.position)
            : fmt::format("{} only in {}", name_of(part), pair.a.has(part) ? 'A' : 'B');
    return true;
  }
  return false;
}

// Adds the words of two settings that differ.
void compare_settings(std::string_view a, std::string_view b, std::uint32_t exchange,
                      std::vector<std::string>& differences) {
  std::istringstream in_a{std::string(a)}, in_b{std::string(b)};
  std::string word_a, word_b;
  while (in_a >> word_a && in_b >> word_b) {
    if (word_a != word_b)
      differences.push_back(fmt::format("exchange {}: {} in A, {} in B", exchange, word_a, word_b));
  }
}

// The first record of `one` that `other` lacks.
std::optional<std::size_t> first_missing(const RankTrace& one, const RankTrace& other) {
  for (std::size_t i = 0; i < one.entries().size(); ++i) {
    const TraceRecord& record = one.entries()[i].record;
    if (!other.find(record.kind, record.exchange, record.number)) return i;
  }
  return std::nullopt;
}

class RankComparison {
 public:
  RankComparison(const std::string& a, const std::string& b, int rank)
      : a_(a), b_(b), rank_(rank) {}

  // Returns the first difference between the records of this rank. Settings with other values are
  // no difference: those that come before it are appended to `settings`.
  std::optional<RankDifference> first(std::vector<std::string>& settings) const {
    const std::optional<std::size_t> only_a = first_missing(a_, b_), only_b = first_missing(b_, a_);
    std::optional<RankDifference> found;
    for (std::size_t i = 0; i < a_.entries().size() && !found; ++i) {
      if (i == only_a) break;
      found = at(i, settings);
    }
    if (!found && only_a) found = only(*only_a, a_, 'A');
    if (only_b && (!found || *only_b < found->position)) found = only(*only_b, b_, 'B');
    return found;
  }
  std::size_t num_records() const { return a_.entries().size(); }

 private:
  std::optional<RankDifference> at(std::size_t i, std::vector<std::string>& settings) const {
    const TraceEntry& entry = a_.entries()[i];
    const TraceRecord& record = entry.record;
    const TraceEntry& other = *b_.find(record.kind, record.exchange, record.number);
    if (entry.settings()) {
      compare_settings(entry.detail, other.detail, record.exchange, settings);
      return std::nullopt;
    }
    RankDifference difference;
    difference.position = i;
    difference.rank = rank_;
    if (compare({a_, entry, other}, difference)) return difference;
    return std::nullopt;
  }
  RankDifference only(std::size_t i, const RankTrace& run, char name) const {
    const TraceRecord& record = run.entries()[i].record;
    const bool sent =
        record.kind == TraceKind::kDispatchSent || record.kind == TraceKind::kCombineSent;
    const std::string half = record.kind == TraceKind::kSettings ? "its creation"
                             : sent                              ? "its send half"
                                                                 : "its receive half";
    return {.position = i,
            .part = -1,
            .rank = rank_,
            .where = record.kind == TraceKind::kSettings
                         ? fmt::format("exchange {}", record.exchange)
                         : where(record),
            .what = fmt::format("{} was recorded only in {}", half, name)};
  }

  RankTrace a_, b_;
  int rank_;
};

}  // namespace

RunDifference compare_runs(const std::map<int, std::string>& a,
                           const std::map<int, std::string>& b) {
  RunDifference difference;
  std::vector<std::string> only[2];
  for (const auto& [rank, file] : a) {
    const auto other = b.find(rank);
    if (other == b.end()) {
      only[0].push_back(std::to_string(rank));
      continue;
    }
    const RankComparison comparison(file, other->second, rank);
    std::vector<std::string> settings;
    if (auto first = comparison.first(settings)) difference.ranks.push_back(*first);
    if (difference.num_ranks == 0) difference.settings = settings;
    ++difference.num_ranks;
    difference.num_records += comparison.num_records();
  }
  for (const auto& [rank, file] : b) {
    if (!a.contains(rank)) only[1].push_back(std::to_string(rank));
  }
  for (int run = 0; run < 2; ++run) {
    if (only[run].empty()) continue;
    difference.lacks_ranks = true;
    difference.settings.push_back(
        fmt::format("ranks only in {}: {}", "AB"[run], fmt::join(only[run], ", ")));
  }
  if (difference.num_ranks == 0) refuse("the runs have no rank in common");
  std::ranges::sort(difference.ranks, {}, [](const RankDifference& at) {
    return std::tuple(at.position, at.part, at.rank);
  });
  return difference;
}

std::string text_of(const RunDifference& difference) {
  std::string text;
  for (const std::string& line : difference.settings) text += fmt::format("settings: {}\n", line);
  if (difference.ranks.empty())
    return text + fmt::format("equal: {} records of {} ranks{}\n", difference.num_records,
                              difference.num_ranks,
                              difference.lacks_ranks ? ", those that both runs have" : "");
  const auto add = [&](const char* begin, const RankDifference& at) {
    text += fmt::format("{}{}, rank {}: {}\n", begin, at.where, at.rank, at.what);
  };
  const RankDifference& first = difference.ranks.front();
  add("first difference: ", first);
  if (first.part >= 0 && difference.num_ranks > 0)
    text += "everything that was recorded before it is equal\n";
  for (std::size_t i = 1; i < difference.ranks.size(); ++i)
    add(i == 1 ? "first differences of other ranks:\n  " : "  ", difference.ranks[i]);
  return text;
}

}  // namespace ferry::tools
