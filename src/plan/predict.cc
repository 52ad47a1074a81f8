#include "plan/predict.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

namespace ferry::internal {

namespace {

int chunks_for(const SchedulePair& pair, int wanted) {
  const std::size_t tasks = std::max(pair.dispatch.tasks.size(), pair.combine.tasks.size());
  if (tasks == 0) return wanted;
  return static_cast<int>(std::min<std::size_t>(kMostTasks / tasks, wanted));
}

std::pair<double, std::vector<Span>> time(const Schedule& schedule, int chunks) {
  const Timeline timeline = simulate(cut(schedule, chunks));
  std::vector<Span> spans;
  for (std::size_t i = 0; i < schedule.tasks.size(); ++i) {
    const Task& task = schedule.tasks[i];
    Span span{.what = task.what,
              .start_us = timeline.tasks[i * chunks].start_us,
              .end_us = timeline.tasks[i * chunks + chunks - 1].end_us,
              .bytes = task.bytes,
              .count = task.count};
    spans.push_back(std::move(span));
  }
  return {timeline.end_us, std::move(spans)};
}

std::vector<Load> loads(const SchedulePair& pair) {
  std::vector<Load> loads;
  for (const LoadKind& kind : pair.kinds)
    loads.push_back({.name = kind.name, .gb_s = kind.gb_s, .source = kind.source});
  const auto add = [&](const Schedule& schedule, double Load::*bytes, double Load::*us) {
    const std::vector<double> all = resource_bytes(schedule);
    const std::vector<double> work = resource_us(schedule);
    for (std::size_t i = 0; i < all.size(); ++i) {
      Load& load = loads[schedule.resources[i].kind];
      load.*bytes = std::max(load.*bytes, all[i]);
      load.*us = std::max(load.*us, work[i]);
    }
  };
  add(pair.dispatch, &Load::dispatch_bytes, &Load::dispatch_us);
  add(pair.combine, &Load::combine_bytes, &Load::combine_us);
  for (const Resource& resource : pair.dispatch.resources)
    loads[resource.kind].instances += static_cast<int>(resource.instances);
  return loads;
}

double bound_us(const Schedule& tasks, const std::optional<HopSchedules>& ways,
                Schedule HopSchedules::*half) {
  if (!ways) return bound_us(tasks);
  return std::max(busiest_us(tasks), longest_way_us((*ways).*half));
}

double end_us(const SchedulePair& pair, int chunks) {
  if (!pair.ways) return time(pair.dispatch, chunks).first + time(pair.combine, chunks).first;
  return bound_us(pair.dispatch, pair.ways, &HopSchedules::dispatch) +
         bound_us(pair.combine, pair.ways, &HopSchedules::combine);
}

// Multiplies the rates of one kind of resource by `factor` in all schedules of the pair.
void scale_rates(SchedulePair& pair, int kind, double factor) {
  const auto scale = [&](Schedule& schedule) {
    for (Resource& resource : schedule.resources)
      if (resource.kind == kind) resource.capacity *= factor;
  };
  scale(pair.dispatch), scale(pair.combine);
  if (pair.ways) scale(pair.ways->dispatch), scale(pair.ways->combine);
}

std::vector<std::pair<std::string, double>> doubled(SchedulePair pair, int chunks) {
  std::vector<std::pair<std::string, double>> times;
  for (int kind = 0; kind < std::ssize(pair.kinds); ++kind) {
    if (pair.kinds[kind].gb_s <= 0) continue;
    scale_rates(pair, kind, 2);
    times.emplace_back(pair.kinds[kind].name, end_us(pair, chunks));
    scale_rates(pair, kind, 0.5);
  }
  return times;
}

}  // namespace

Prediction predict(const std::string& strategy, const SchedulePair& pair,
                   const PlanOptions& options) {
  Prediction prediction;
  prediction.strategy = strategy;
  prediction.received_bytes = pair.received_bytes;
  prediction.staged_bytes = pair.staged_bytes;
  prediction.loads = loads(pair);
  prediction.dispatch_us = prediction.dispatch_bound_us =
      bound_us(pair.dispatch, pair.ways, &HopSchedules::dispatch);
  prediction.combine_us = prediction.combine_bound_us =
      bound_us(pair.combine, pair.ways, &HopSchedules::combine);
  if (!pair.ways) {
    prediction.chunks = chunks_for(pair, options.chunks);
    std::tie(prediction.dispatch_us, prediction.dispatch_spans) =
        time(pair.dispatch, prediction.chunks);
    std::tie(prediction.combine_us, prediction.combine_spans) =
        time(pair.combine, prediction.chunks);
  }
  prediction.at_most_us = pair.ways ? pair.ways->at_most_us : prediction.pair_us();
  prediction.limited_by = candidate_of(prediction).limited_by;
  if (options.doubled) prediction.doubled = doubled(pair, prediction.chunks);
  return prediction;
}

Candidate candidate_of(const Prediction& prediction) {
  Candidate candidate{.name = prediction.strategy, .pair_us = prediction.pair_us()};
  for (const Load& load : prediction.loads)
    candidate.links.push_back({.name = load.name,
                               .gb_s = load.gb_s,
                               .dispatch_bytes = load.dispatch_bytes,
                               .combine_bytes = load.combine_bytes,
                               .dispatch_us = load.dispatch_us,
                               .combine_us = load.combine_us});
  candidate.limited_by = limit_of(candidate.links, prediction.bound_us());
  return candidate;
}

}  // namespace ferry::internal
