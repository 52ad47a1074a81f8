// Reads the files that FERRY_TRACE wrote (src/exchange/trace/trace_format.h has the format).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "exchange/trace/trace_format.h"

namespace ferry::tools {

// The file of each rank of a run, and none if there is no such run. `name` is the value that
// FERRY_TRACE had.
std::map<int, std::string> find_run(const std::string& name);
// The same. Throws std::invalid_argument if there is no such run.
std::map<int, std::string> files_of_run(const std::string& name);

struct TraceEntry {
  internal::TraceRecord record;
  std::string_view detail;  // empty: not recorded

  // The number of 32-bit words of a part: 4 for each row received, else 1 for each element.
  std::int64_t num_words(internal::TracePart part) const;
  // The words of a part; empty if it has no detail.
  std::vector<std::uint32_t> words(internal::TracePart part) const;
  bool has(internal::TracePart part) const {
    return record.digests[static_cast<std::size_t>(part)] != 0;
  }
  bool settings() const { return record.kind == internal::TraceKind::kSettings; }
};

// The records of one rank. A last record that was cut off, since the rank was killed, is left out.
class RankTrace {
 public:
  // Throws std::invalid_argument if the file cannot be read or is no trace.
  explicit RankTrace(const std::string& file);

  const std::vector<TraceEntry>& entries() const { return entries_; }
  // The entry of a half of an operation; null: there is none.
  const TraceEntry* find(internal::TraceKind kind, std::uint32_t exchange,
                         std::uint64_t number) const;

 private:
  std::string bytes_;
  std::vector<TraceEntry> entries_;
  std::map<std::tuple<std::uint32_t, std::uint64_t, internal::TraceKind>, std::size_t> places_;
};

}  // namespace ferry::tools
