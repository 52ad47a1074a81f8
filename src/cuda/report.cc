#include "cuda/report.h"

#include <fmt/format.h>

#include <string>

namespace ferry::internal {

const char* phase_name(CudaPhase phase) noexcept {
  switch (phase) {
    case CudaPhase::kCounts: return "counts";
    case CudaPhase::kRows: return "rows";
    case CudaPhase::kOutputs: return "outputs";
    case CudaPhase::kReuse: break;
  }
  return "reuse";
}

namespace {

std::string id_text(const CudaReport& report, const CudaShape& shape) {
  return fmt::format("token {}, k {}: expert id {} is outside [-1, {})", report.entry / shape.top_k,
                     report.entry % shape.top_k, report.value, shape.num_experts);
}

std::string capacity_text(const CudaReport& report, const CudaShape& shape) {
  if (shape.layout == Layout::kPadded)
    return fmt::format("an expert of rank {} would receive {} rows, expert_capacity is {}",
                       report.culprit, report.rows, report.most);
  return fmt::format("rank {} would receive {} rows, row_capacity is {}", report.culprit,
                     report.rows, report.most);
}

std::string wait_text(const CudaReport& report, std::int64_t deadline_ns) {
  const char* phase = phase_name(report.phase);
  const std::string flag = fmt::format("its flag is {}, expected {}", report.seen, report.expected);
  switch (static_cast<Code>(report.code)) {
    case Code::kTimeout:
      return fmt::format("gave up after {:.3g} s waiting for {} of rank {} ({})",
                         1e-9 * deadline_ns, phase, report.culprit, flag);
    case Code::kPeerLost:
      return fmt::format("rank {} died or departed while this rank waited for its {} ({})",
                         report.culprit, phase, flag);
    default:
      return fmt::format("rank {} gave up on this exchange while this rank waited for its {}",
                         report.culprit, phase);
  }
}

}  // namespace

Status status_of(const CudaReport& report, const CudaShape& shape, std::int64_t deadline_ns) {
  const auto code = static_cast<Code>(report.code);
  const std::string call =
      fmt::format("{} {} on the device", report.combine ? "combine" : "dispatch", report.number);
  std::string text;
  switch (code) {
    case Code::kInvalidArgument: text = id_text(report, shape); break;
    case Code::kPeerRejected:
      text = fmt::format("rank {} rejected its call", report.culprit);
      if (!report.combine && report.value != 0) text += ": " + id_text(report, shape);
      break;
    case Code::kMismatch:
      text =
          fmt::format("ranks 0 and {} combine rows of different types or widths (hidden {} and {})",
                      report.culprit, report.expected, report.seen);
      break;
    case Code::kCapacity: text = capacity_text(report, shape); break;
    default: text = wait_text(report, deadline_ns);
  }
  return {code, fmt::format("{}: {}", call, text), report.culprit};
}

}  // namespace ferry::internal
