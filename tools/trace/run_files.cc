#include "tools/trace/run_files.h"

#include <charconv>
#include <cstring>
#include <filesystem>

#include "base/environment.h"
#include "tools/file_bytes.h"
#include "tools/refuse.h"

namespace ferry::tools {

using internal::TraceHead;
using internal::TraceKind;
using internal::TracePart;
using internal::TraceRecord;

namespace {

// More than any exchange has, and few enough that no product below overflows.
constexpr std::int64_t kMostCount = std::int64_t{1} << 40;
constexpr std::int32_t kMostTopK = 1024;

// The number of bytes that the record's parts need.
std::uint64_t detail_bytes_of(const TraceEntry& entry) {
  std::uint64_t words = 0;
  for (int part = 0; part < internal::kNumTraceParts; ++part)
    words += entry.num_words(static_cast<TracePart>(part));
  return words * sizeof(std::uint32_t);
}

void check(const TraceEntry& entry, const std::string& file, std::size_t at) {
  const TraceRecord& record = entry.record;
  const bool counts = record.tokens >= 0 && record.tokens <= kMostCount && record.rows >= 0 &&
                      record.rows <= kMostCount && record.top_k >= 0 && record.top_k <= kMostTopK;
  const bool kind = record.kind <= TraceKind::kCombineReceived;
  if (!counts || !kind ||
      (!entry.settings() && record.detail_bytes != 0 &&
       record.detail_bytes != detail_bytes_of(entry)))
    refuse("'{}': the record at byte {} is damaged", file, at);
}

}  // namespace

std::map<int, std::string> find_run(const std::string& name) {
  const internal::TracePlace place = internal::trace_place(name);
  const std::filesystem::path pattern(place.file);
  const std::size_t digits = pattern.filename().string().find("%r");
  std::map<int, std::string> files;
  std::error_code none;
  const std::filesystem::path folder = pattern.has_parent_path() ? pattern.parent_path() : ".";
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const std::string file = entry.path().filename().string();
    int rank = -1;
    if (file.size() > digits) std::from_chars(&file[digits], &file[0] + file.size(), rank);
    // The whole name is compared: names of other files may begin in the same way.
    const std::string expected = rank < 0 ? "" : place.name_of(rank);
    if (std::filesystem::path(expected).filename() == file) files.emplace(rank, expected);
  }
  return files;
}

std::map<int, std::string> files_of_run(const std::string& name) {
  std::map<int, std::string> files = find_run(name);
  if (files.empty())
    refuse("'{}': there is no '{}', and no file of another rank", name,
           internal::trace_place(name).name_of(0));
  return files;
}

std::int64_t TraceEntry::num_words(TracePart part) const {
  if (!has(part)) return 0;
  switch (part) {
    case TracePart::kIds:
    case TracePart::kWeights: return record.tokens * record.top_k;
    case TracePart::kAddends:
    case TracePart::kResults: return record.tokens;
    case TracePart::kRowsSent:
      return record.kind == TraceKind::kCombineSent ? record.rows : record.tokens;
    case TracePart::kRowsReceived: return 4 * record.rows;
  }
  return 0;
}

std::vector<std::uint32_t> TraceEntry::words(TracePart part) const {
  if (!has(part) || detail.empty()) return {};
  std::int64_t first = 0;
  for (int before = 0; before < static_cast<int>(part); ++before)
    first += num_words(static_cast<TracePart>(before));
  std::vector<std::uint32_t> words(num_words(part));
  const std::string_view bytes = detail.substr(first * sizeof words[0]);
  if (!words.empty()) std::memcpy(words.data(), bytes.data(), words.size() * sizeof words[0]);
  return words;
}

RankTrace::RankTrace(const std::string& file) : bytes_(file_bytes(file)) {
  TraceHead head;
  if (bytes_.size() < sizeof head) refuse("'{}' is no trace: it has {} bytes", file, bytes_.size());
  std::memcpy(&head, bytes_.data(), sizeof head);
  if (head.magic != internal::kTraceMagic)
    refuse("'{}' is no trace of this version of ferry", file);
  for (std::size_t at = sizeof head; bytes_.size() - at >= sizeof(TraceRecord);) {
    TraceEntry entry;
    std::memcpy(&entry.record, bytes_.data() + at, sizeof entry.record);
    check(entry, file, at);
    const std::size_t begin = at + sizeof entry.record;
    if (entry.record.detail_bytes > bytes_.size() - begin) break;
    entry.detail = std::string_view(bytes_).substr(begin, entry.record.detail_bytes);
    at = begin + entry.record.detail_bytes;
    places_.emplace(std::tuple(entry.record.exchange, entry.record.number, entry.record.kind),
                    entries_.size());
    entries_.push_back(entry);
  }
}

const TraceEntry* RankTrace::find(TraceKind kind, std::uint32_t exchange,
                                  std::uint64_t number) const {
  const auto found = places_.find({exchange, number, kind});
  return found == places_.end() ? nullptr : &entries_[found->second];
}

}  // namespace ferry::tools
