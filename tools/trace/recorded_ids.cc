#include "tools/trace/recorded_ids.h"

#include "tools/refuse.h"
#include "tools/trace/run_files.h"

namespace ferry::tools {

using internal::TraceKind;
using internal::TracePart;

namespace {

// The dispatches of a rank that have ids.
std::vector<TraceEntry> dispatches_of(const RankTrace& run) {
  std::vector<TraceEntry> found;
  for (const TraceEntry& entry : run.entries()) {
    if (entry.record.kind == TraceKind::kDispatchSent && entry.has(TracePart::kIds))
      found.push_back(entry);
  }
  return found;
}

}  // namespace

RecordedIds recorded_ids(const std::map<int, std::string>& files, std::int64_t layers) {
  RecordedIds recorded;
  for (const auto& [rank, file] : files) {
    const RankTrace run(file);
    const std::vector<TraceEntry> dispatches = dispatches_of(run);
    if (dispatches.size() % layers != 0)
      refuse("'{}' has {} dispatches with ids, which are not a multiple of {} layers", file,
             dispatches.size(), layers);
    for (std::size_t step = 0; step < dispatches.size(); step += layers) {
      std::vector<std::vector<std::uint32_t>> words;  // the ids of each layer
      const internal::TraceRecord& first = dispatches[step].record;
      for (std::int64_t layer = 0; layer < layers; ++layer) {
        const TraceEntry& entry = dispatches[step + layer];
        if (entry.record.tokens != first.tokens)
          refuse("'{}': layers 0 and {} of step {} have {} and {} tokens", file, layer,
                 step / layers, first.tokens, entry.record.tokens);
        if (recorded.top_k == 0) recorded.top_k = entry.record.top_k;
        if (entry.record.top_k != recorded.top_k)
          refuse("'{}': dispatches have top-k {} and {}", file, recorded.top_k, entry.record.top_k);
        words.push_back(entry.words(TracePart::kIds));
        if (std::ssize(words.back()) != first.tokens * recorded.top_k)
          refuse("'{}': the ids of step {} were not recorded (FERRY_TRACE_FROM, or a large file)",
                 file, step / layers);
      }
      for (std::int64_t token = 0; token < first.tokens; ++token) {
        for (const std::vector<std::uint32_t>& ids : words)
          recorded.ids.insert(recorded.ids.end(), ids.begin() + token * recorded.top_k,
                              ids.begin() + (token + 1) * recorded.top_k);
      }
    }
  }
  if (recorded.ids.empty()) refuse("the run has no ids");
  return recorded;
}

}  // namespace ferry::tools
