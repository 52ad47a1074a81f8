// Metrics: the counters of a node's ranks as Prometheus text, in a file or at a port, as
// FERRY_METRICS says; without it nothing runs. One thread of the process for all its groups.
// The first rank of a node has one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "group/counters.h"

namespace ferry::internal {

std::string metrics_text(const std::vector<const NodeCounters*>& nodes);

class Exporter;

class Metrics {
 public:
  // Nothing where the environment requests nothing. Throws Error: the request is malformed
  // (kInvalidArgument), the file or the port is refused (kSystem).
  Metrics();
  // The last values are in the file by then.
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  void show(NodeCounters node);

 private:
  std::shared_ptr<Exporter> exporter_;  // of the process, while a group of it has metrics
  NodeCounters node_;
};

}  // namespace ferry::internal
