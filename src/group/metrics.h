// Metrics: the counters of a node's ranks as Prometheus text, in a file or at a port, as
// FERRY_METRICS says; without this variable nothing runs. One thread of the process serves all of
// its groups. One rank of a node has a Metrics (CountersHead::exporter).
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
  // Without FERRY_METRICS this does nothing. Throws Error if the value is malformed
  // (kInvalidArgument), or if the file or the port is refused (kSystem).
  Metrics();
  // When this returns, the file has the last values.
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  void show(NodeCounters node);

 private:
  std::shared_ptr<Exporter> exporter_;  // one for the process, as long as a group of it has metrics
  NodeCounters node_;
};

}  // namespace ferry::internal
