// Takes the launcher's place on its host: directory, environment, and a Job that obeys its orders.
// See launch_agent.h; calls launch_orders and launch_job.
#include "launch_agent.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "ferry/status.h"
#include "launch_job.h"
#include "launch_orders.h"

namespace ferry::tools {
namespace {

// All of the launcher's, as srun has it: the same program runs in the same way.
void take_environment(const std::vector<std::string>& entries) {
  clearenv();
  for (const std::string& entry : entries) {
    const std::size_t equals = entry.find('=');
    if (equals == std::string::npos) continue;
    setenv(entry.substr(0, equals).c_str(), entry.substr(equals + 1).c_str(), 1);
  }
}

void enter_directory(const std::string& directory) {
  if (chdir(directory.c_str()) == 0) return;
  throw SpawnError(1, fmt::format("cannot work in '{}': {}", directory, std::strerror(errno)));
}

int fail(const std::string& what, int exit_code) {
  std::cerr << kAnswerFailed << what << std::endl;
  return exit_code;
}

}  // namespace

int run_agent() {
  try {
    Orders orders(STDIN_FILENO);
    const Task task = orders.task();
    take_environment(task.environment);
    enter_directory(task.directory);
    Job job({.share = task.share,
             .tag = true,
             .speaker = fmt::format("ferry launch on {}", task.host),
             .orders = &orders});
    job.start(task.program, task.identity);
    return job.watch();
  } catch (const SpawnError& error) {
    return fail(error.what(), error.exit_code());
  } catch (const Error& error) {
    return fail(error.what(), 1);
  }
}

}  // namespace ferry::tools
