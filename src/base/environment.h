// Environment: every variable that is ferry's own, with its values and meaning, and the one place
// of libferry that asks the environment for anything (tests/tidy.py checks both, and that
// docs/environment.md says the same). Variables of launchers are in bootstrap/launcher.cc, UCX's in
// network/ucx_config.cc, HCCL's in aclnn/environment.cc (of libferry_cann).
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

// What a variable says; nullopt when it is not set, or empty.
using GetEnvironment = std::function<std::optional<std::string>(const std::string& name)>;
// Of this process.
std::optional<std::string> environment(const std::string& name);
inline std::string environment_or_empty(const std::string& name) {
  return environment(name).value_or("");
}

// Throw Error(kInvalidArgument) that names the variable, what it says, and what it may say.
int whole_number(const std::string& name, const std::string& text, int least, int most);

enum class LogLevel : std::uint8_t { kNone, kWarn, kInfo, kDebug };
LogLevel log_level_in_environment();    // FERRY_LOG
bool progress_thread_in_environment();  // FERRY_PROGRESS

// FERRY_METRICS: where metrics are shown; nowhere when `text` is empty.
struct MetricsPlace {
  std::string text;  // as it was given
  std::string file;
  int port = 0;  // 0: a file
};
MetricsPlace metrics_in_environment();

}  // namespace ferry::internal
