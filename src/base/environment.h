// All environment variables of ferry, with their values and meaning. Only this file of libferry
// reads the environment. tests/tidy.py checks this, and that docs/environment.md has the same
// table. The names of launchers' variables are in bootstrap/launcher.cc, and those of UCX in
// network/ucx_config.cc. libferry_cann reads those of HCCL in aclnn/environment.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

namespace ferry::internal {

struct EnvironmentVariable {
  const char *name, *values, *meaning;
};
std::span<const EnvironmentVariable> environment_variables() noexcept;

// A function that returns the value of a variable, or nullopt if it is not set or empty.
using GetEnvironment = std::function<std::optional<std::string>(const std::string& name)>;
// Reads a variable of this process.
std::optional<std::string> environment(const std::string& name);
inline std::string environment_or_empty(const std::string& name) {
  return environment(name).value_or("");
}

// Throw Error(kInvalidArgument) that names the variable, its value and the valid values.
int whole_number(const std::string& name, const std::string& text, int least, int most);

enum class LogLevel : std::uint8_t { kNone, kWarn, kInfo, kDebug };
LogLevel log_level_in_environment();    // FERRY_LOG
bool progress_thread_in_environment();  // FERRY_PROGRESS

// FERRY_METRICS: the file or the address at which metrics are shown. If `text` is empty, they are
// not shown.
struct MetricsPlace {
  std::string text;  // the value of the variable
  std::string file;
  std::string address;  // the IP address of the interface where clients connect
  int port = 0;         // 0: a file
};
MetricsPlace metrics_in_environment();

// FERRY_TRACE and FERRY_TRACE_FROM: the files in which exchanges record their operations. If `file`
// is empty, nothing is recorded.
struct TracePlace {
  std::string file;        // has %r, the rank's number, in its last part
  std::uint64_t from = 0;  // the first record of each file that also names tokens

  std::string name_of(int rank) const;
};
TracePlace trace_place(const std::string& name);  // `name`: a value of FERRY_TRACE
TracePlace trace_in_environment();

}  // namespace ferry::internal
