// Writes trace files; see results.h.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "tools/bench/results.h"
#include "traffic/choose.h"

namespace ferry::bench {
namespace {

using Json = nlohmann::ordered_json;

class TraceWriter {
 public:
  explicit TraceWriter(const Results& results) : results_(results) {
    for (std::size_t i = 0; i < results.traced.size(); ++i) {
      if (results.traced[i].num_spans > 0)
        start_ns_ = std::min(start_ns_, results.traced[i].spans[0].time.begin_ns);
    }
  }

  Json events() const {
    Json events = Json::array();
    events.push_back(name("process_name", 0, "ferry bench"));
    for (std::size_t rank = 0; rank < results_.num_ranks; ++rank) {
      events.push_back(name("thread_name", rank, fmt::format("rank {}", rank)));
      for (std::size_t operation = 0; operation < Results::kTracedExchanges * 2; ++operation) {
        add_operation(events, rank, operation);
      }
    }
    return events;
  }

 private:
  static Json name(const char* kind, std::size_t track, const std::string& text) {
    return {{"ph", "M"}, {"name", kind}, {"pid", 0}, {"tid", track}, {"args", {{"name", text}}}};
  }

  Json span(const std::string& name, const char* category, std::size_t track,
            const Interval& time) const {
    return {{"ph", "X"},
            {"name", name},
            {"cat", category},
            {"pid", 0},
            {"tid", track},
            {"ts", static_cast<double>(time.begin_ns - start_ns_) * 1e-3},
            {"dur", static_cast<double>(time.end_ns - time.begin_ns) * 1e-3}};
  }

  void add_operation(Json& events, std::size_t rank, std::size_t operation) const {
    const std::size_t index = rank * Results::kTracedExchanges * 2 + operation;
    const TracedOperation& traced = results_.traced[index];
    if (traced.num_spans == 0) return;
    const char* const category = operation % 2 == 0 ? "dispatch" : "combine";
    const Interval whole = {traced.spans[0].time.begin_ns,
                            traced.spans[traced.num_spans - 1].time.end_ns};
    Json event = span(fmt::format("{} {}", category, operation / 2), category, rank, whole);
    for (std::size_t source = 0; source < results_.num_ranks; ++source) {
      event["args"]["wait_us"][fmt::format("rank {}", source)] =
          static_cast<double>(results_.traced_wait_ns[index * results_.num_ranks + source]) * 1e-3;
    }
    events.push_back(std::move(event));
    for (std::size_t i = 0; i < traced.num_spans; ++i) {
      events.push_back(span(traced.spans[i].phase.data(), category, rank, traced.spans[i].time));
    }
  }

  const Results& results_;
  std::int64_t start_ns_ = std::numeric_limits<std::int64_t>::max();
};

// The bytes that each rank sends to other nodes in one pair.
Json link_json(const Results& results) {
  Json link_row_bytes = Json::array(), link_bytes = Json::array();
  for (std::size_t rank = 0; rank < results.num_ranks; ++rank) {
    link_row_bytes.push_back(results.summary[rank].link_row_bytes);
    link_bytes.push_back(results.summary[rank].link_bytes);
  }
  return {{"algorithm", internal::algorithm_name(results.summary[0].algorithm)},
          {"link_row_bytes", link_row_bytes},
          {"link_bytes", link_bytes}};
}

}  // namespace

std::string trace_json(const Results& results) {
  return Json{{"displayTimeUnit", "ns"},
              {"traceEvents", TraceWriter(results).events()},
              {"otherData", link_json(results)}}
      .dump();
}

void write_trace(const std::string& file, const std::string& trace) {
  std::ofstream stream(file);
  stream << trace << '\n';
  stream.close();
  if (!stream) throw std::runtime_error(fmt::format("--trace: cannot write '{}'", file));
}

}  // namespace ferry::bench
