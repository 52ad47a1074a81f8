#include "plan/predict.h"

#include <algorithm>
#include <tuple>

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

std::vector<std::pair<std::string, double>> doubled(const SchedulePair& pair, int chunks) {
  std::vector<std::pair<std::string, double>> times;
  for (std::size_t kind = 0; kind < pair.kinds.size(); ++kind) {
    if (pair.kinds[kind].gb_s <= 0) continue;
    const auto faster = [&](Schedule schedule) {
      for (Resource& resource : schedule.resources)
        if (resource.kind == static_cast<int>(kind)) resource.capacity *= 2;
      return time(schedule, chunks).first;
    };
    times.emplace_back(pair.kinds[kind].name, faster(pair.dispatch) + faster(pair.combine));
  }
  return times;
}

}  // namespace

Prediction predict(const Strategy& strategy, const SchedulePair& pair, const PlanOptions& options) {
  const int chunks = chunks_for(pair, options.chunks);
  Prediction prediction;
  prediction.strategy = strategy.name;
  prediction.received_bytes = pair.received_bytes;
  prediction.staged_bytes = pair.staged_bytes;
  prediction.loads = loads(pair);
  prediction.dispatch_bound_us = bound_us(pair.dispatch);
  prediction.combine_bound_us = bound_us(pair.combine);
  prediction.chunks = chunks;
  std::tie(prediction.dispatch_us, prediction.dispatch_spans) = time(pair.dispatch, chunks);
  std::tie(prediction.combine_us, prediction.combine_spans) = time(pair.combine, chunks);
  prediction.limited_by = candidate_of(prediction).limited_by;
  prediction.at_most_us = prediction.pair_us();
  if (options.doubled) prediction.doubled = doubled(pair, chunks);
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
