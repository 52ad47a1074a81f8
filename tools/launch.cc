// `ferry launch`: options and their limits. Called by main.cc; calls launch_environment and
// launch_job.
#include "launch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string_view>

#include "launch_environment.h"
#include "launch_job.h"

namespace ferry::tools {
namespace {

constexpr int kMostRanks = 4096;
constexpr double kLongestSeconds = 1e8;   // three years
constexpr std::size_t kLongestName = 24;  // so that the run id fits into the address of a group

constexpr const char* kFooter =
    R"(Each rank gets torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
GROUP_RANK, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RUN_ID, ...) and FERRY_SECRET. OMP_NUM_THREADS
is left as it is. MASTER_PORT was free when tried and no other launch has it; nothing is bound to
it, so that torch's store can be. FERRY_LOG=info says which port and why.

Rank 0 reads the launcher's input, the others read nothing. SIGINT, SIGTERM, SIGHUP, SIGQUIT,
SIGUSR1 and SIGUSR2 go to all ranks and their children; a second SIGINT kills them. What ranks
leave behind is killed. If the launcher itself is killed, its ranks are, too.

Exit code: the largest of the ranks that ended by themselves (128 + number for a signal), 124 after
--timeout, 127 if the program is not found, 126 if it cannot be run, 2 for a wrong command line.)";

struct LaunchOptions {
  long long num_ranks = 0;
  std::string name = "ferry";
  bool tag = true;
  double timeout_s = 0;
  double grace_s = 5;
};

std::chrono::nanoseconds from_seconds(double seconds) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

void check(const LaunchOptions& options, const std::vector<std::string>& program) {
  const auto refuse = [](const std::string& text) {
    throw CLI::ValidationError("ferry launch", text);
  };
  if (options.num_ranks < 1 || options.num_ranks > kMostRanks) {
    refuse(fmt::format("-n {}: a launch has 1 to {} ranks", options.num_ranks, kMostRanks));
  }
  rlimit descriptors{};
  getrlimit(RLIMIT_NOFILE, &descriptors);
  const auto needed = static_cast<rlim_t>(2 * options.num_ranks +
                                          32);  // two pipes a rank, and some for the launcher
  if (options.tag && needed > descriptors.rlim_max) {
    refuse(fmt::format(
        "-n {} needs {} file descriptors, the limit (ulimit -Hn) is {}; --no-tag needs few",
        options.num_ranks, needed, descriptors.rlim_max));
  }
  const bool plain = std::all_of(options.name.begin(), options.name.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '-' || c == '_' || c == '.';
  });
  if (options.name.empty() || options.name.size() > kLongestName || !plain) {
    refuse(fmt::format("--name '{}': 1 to {} letters, digits, '-', '_' and '.'", options.name,
                       kLongestName));
  }
  // Negated, so that NaN is refused.
  if (!(options.timeout_s >= 0 && options.timeout_s <= kLongestSeconds)) {
    refuse(
        fmt::format("--timeout {}: 0 (none) to {:g} seconds", options.timeout_s, kLongestSeconds));
  }
  if (!(options.grace_s >= 0 && options.grace_s <= kLongestSeconds)) {
    refuse(fmt::format("--grace {}: 0 to {:g} seconds", options.grace_s, kLongestSeconds));
  }
  if (program.empty() || program[0].empty())
    refuse("no program: ferry launch -n 8 -- program arguments");
}

// Pipes must not take the numbers 0 to 2 when the launcher was started with these closed.
void open_standard_streams() {
  int fd = 0;
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) close(fd);
}

bool log_wanted() {
  const char* const level = std::getenv("FERRY_LOG");
  return level && (std::string_view(level) == "info" || std::string_view(level) == "debug");
}

int launch(const LaunchOptions& options, const std::vector<std::string>& program) {
  open_standard_streams();
  const LaunchIdentity identity = make_identity(options.name);
  if (log_wanted()) {
    std::cerr << fmt::format(
        "ferry launch: {} ranks, TORCHELASTIC_RUN_ID={}, MASTER_PORT={} ({})\n", options.num_ranks,
        identity.run_id, identity.master_port, identity.port_reason);
  }
  JobOptions job_options{.num_ranks = static_cast<int>(options.num_ranks),
                         .tag = options.tag,
                         .grace = from_seconds(options.grace_s)};
  if (options.timeout_s > 0) job_options.timeout = from_seconds(options.timeout_s);
  Job job(job_options);
  try {
    job.start(program, identity);
  } catch (const SpawnError& error) {
    std::cerr << "ferry launch: " << error.what() << '\n';
    return error.exit_code();
  }
  return job.watch();
}

}  // namespace

void add_launch(CLI::App& app, const std::vector<std::string>& program, int& exit_code) {
  CLI::App* const verb = app.add_subcommand(
      "launch",
      "Start ranks of a program on this host: ferry launch -n 8 [options] -- program arguments");
  const auto options = std::make_shared<LaunchOptions>();
  verb->footer(kFooter);
  verb->add_option("-n,--ranks", options->num_ranks, "Number of ranks")->required();
  verb->add_option("--name", options->name, "First part of TORCHELASTIC_RUN_ID")
      ->capture_default_str();
  verb->add_flag("--tag,!--no-tag", options->tag,
                 "Put [rank] before each line of output (default); --no-tag: ranks write to the "
                 "terminal themselves");
  verb->add_option("--timeout", options->timeout_s,
                   "Seconds after which ranks are stopped; 0: none")
      ->capture_default_str();
  verb->add_option("--grace", options->grace_s,
                   "Seconds that ranks have to end after one has failed")
      ->capture_default_str();
  verb->callback([options, &program, &exit_code] {
    check(*options, program);
    exit_code = launch(*options, program);
  });
}

}  // namespace ferry::tools
