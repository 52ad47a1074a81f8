// `ferry launch`: options and their limits. Calls environment.h, job.h and remote.h.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "base/environment.h"
#include "tools/commands.h"
#include "tools/launch/environment.h"
#include "tools/launch/job.h"
#include "tools/launch/remote.h"

namespace ferry::tools {
namespace {

constexpr int kMostRanks = 4096;
constexpr int kMostRestarts = 1'000'000;
constexpr double kLongestSeconds = 1e8;   // three years
constexpr std::size_t kLongestName = 24;  // the run id must fit into the address of a group

constexpr const char* kLaunchFooter =
    R"(Each rank gets torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
GROUP_RANK, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RUN_ID, ...) and FERRY_SECRET. OMP_NUM_THREADS
is left as it is. MASTER_PORT was free when tried and no other launch has it; nothing is bound to
it, so that torch's store can be. FERRY_LOG=info prints the port and how it was chosen.

Rank 0 reads the launcher's input, the others read nothing. SIGINT, SIGTERM, SIGHUP, SIGQUIT,
SIGUSR1 and SIGUSR2 go to all ranks and their children; a second SIGINT kills them. What ranks
leave behind is killed. If the launcher itself is killed, its ranks are, too.

With --hosts, `ssh -o BatchMode=yes HOST` starts this program there, which starts the ranks in this
directory and with this environment; docs/hosts.md has more. They meet at FERRY_ADDR,
tcp://FIRST_HOST:PORT, and read no input.

With --restart N, a rank that fails while others are in a group of ferry is started again on its
host with FERRY_NEWCOMER=1, at most N times for all ranks together. Its ferry.init() (C++:
Group::from_environment) takes the place of the lost rank, when the others call survive() and
admit(): docs/placement.md. With --spares M, M more processes on each host run the program and wait
in ferry.init() (C++: Group::from_environment) for the place of a rank of that host that fails, so
that a rank is back without the time that its start and its imports take. After the last restart,
after a signal that asks to end, and where no rank is left in a group, a failure ends the launch as
without --restart. So does the loss of a host.

Exit code: the largest of the ranks that ended by themselves and were not started again (128 +
number for a signal), 124 after --timeout, 127 if the program is not found, 126 if it cannot be run,
2 for a wrong command line.)";

struct LaunchOptions {
  bool ranks_given = false;
  long long num_ranks = 0;
  std::string name = "ferry";
  bool tag = true;
  double timeout_s = 0;
  double grace_s = 5;
  int most_restarts = 0;
  int num_spares = 0;
  std::string hosts_text;
  std::vector<HostRanks> hosts;
  std::string ssh{kSsh};
  int port = 0;
  bool remote_agent = false;
};

std::chrono::nanoseconds from_seconds(double seconds) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

std::vector<std::string> split(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

[[noreturn]] void refuse(const std::string& text) {
  throw CLI::ValidationError("ferry launch", text);
}

// Finds the number of ranks, from -n or from --hosts.
void resolve_ranks(LaunchOptions& options) {
  if (options.hosts_text.empty()) {
    if (!options.ranks_given) refuse("-n (--ranks) or --hosts is required");
    return;
  }
  if (options.ranks_given) refuse("-n and --hosts both set the number of ranks: give one");
  try {
    options.hosts = parse_hosts(options.hosts_text);
  } catch (const std::invalid_argument& error) {
    refuse(fmt::format("--hosts: {}", error.what()));
  }
  for (const HostRanks& host : options.hosts) options.num_ranks += host.num_ranks;
  if (split(options.ssh).empty()) refuse("--ssh: no command");
}

void check(const LaunchOptions& options, const std::vector<std::string>& program) {
  if (options.num_ranks < 1 || options.num_ranks > kMostRanks) {
    refuse(fmt::format("-n {}: a launch has 1 to {} ranks", options.num_ranks, kMostRanks));
  }
  if (options.num_spares < 0 || options.num_spares > kMostRanks)
    refuse(fmt::format("--spares {}: 0 to {}", options.num_spares, kMostRanks));
  if (options.num_spares > 0 && options.most_restarts == 0)
    refuse("--spares needs --restart: a spare takes the place of a rank that is started again");
  rlimit descriptors{};
  getrlimit(RLIMIT_NOFILE, &descriptors);
  // A rank needs two pipes, a spare three, and the launcher needs some descriptors.
  const auto needed = static_cast<rlim_t>(2 * options.num_ranks + 3LL * options.num_spares + 32);
  if (options.hosts.empty() && options.tag && needed > descriptors.rlim_max) {
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
  // The condition is negated so that NaN is refused.
  if (!(options.timeout_s >= 0 && options.timeout_s <= kLongestSeconds)) {
    refuse(
        fmt::format("--timeout {}: 0 (none) to {:g} seconds", options.timeout_s, kLongestSeconds));
  }
  if (!(options.grace_s >= 0 && options.grace_s <= kLongestSeconds)) {
    refuse(fmt::format("--grace {}: 0 to {:g} seconds", options.grace_s, kLongestSeconds));
  }
  if (options.most_restarts < 0 || options.most_restarts > kMostRestarts)
    refuse(fmt::format("--restart {}: 0 to {}", options.most_restarts, kMostRestarts));
  if (program.empty() || program[0].empty())
    refuse("no program: ferry launch -n 8 -- program arguments");
  if (options.port < 0 || options.port > 65535)
    refuse(fmt::format("--port {}: 1 to 65535", options.port));
}

// Opens the descriptors 0 to 2 where the launcher was started with them closed, so that no pipe
// gets these numbers.
void open_standard_streams() {
  int fd = 0;
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) close(fd);
}

bool log_wanted() { return internal::log_level_in_environment() >= internal::LogLevel::kInfo; }

JobOptions job_options(const LaunchOptions& options) {
  JobOptions job{.hosts = options.hosts,
                 .ssh = split(options.ssh),
                 .tag = options.tag,
                 .timeout = std::nullopt,
                 .grace = from_seconds(options.grace_s),
                 .num_spares = options.num_spares,
                 .most_restarts = options.most_restarts};
  if (options.timeout_s > 0) job.timeout = from_seconds(options.timeout_s);
  return job;
}

Task make_task(const LaunchOptions& options, const std::vector<std::string>& program,
               LaunchIdentity identity) {
  const int num_ranks = static_cast<int>(options.num_ranks);
  Task task{.host = "",
            .directory = std::filesystem::current_path(),
            .identity = std::move(identity),
            .share = {.num_ranks = num_ranks, .world_size = num_ranks},
            .environment = {},
            .program = program,
            .most_restarts = options.most_restarts,
            .num_spares = options.num_spares};
  if (!options.hosts.empty()) task.share.num_hosts = static_cast<int>(options.hosts.size());
  for (char** entry = environ; *entry; ++entry) task.environment.emplace_back(*entry);
  return task;
}

int launch(const LaunchOptions& options, const std::vector<std::string>& program) {
  open_standard_streams();
  std::vector<std::string> hosts;
  for (const HostRanks& host : options.hosts) hosts.push_back(host.name());
  LaunchIdentity identity = make_identity(options.name, hosts, options.port);
  if (log_wanted()) {
    std::cerr << fmt::format(
        "ferry launch: {} ranks, TORCHELASTIC_RUN_ID={}, MASTER_PORT={} ({}){}\n",
        options.num_ranks, identity.run_id, identity.master_port, identity.port_reason,
        hosts.empty() ? "" : ", FERRY_ADDR=" + identity.ferry_addr);
  }
  try {
    Job job(job_options(options));
    job.start(make_task(options, program, std::move(identity)));
    return job.watch();
  } catch (const SpawnError& error) {
    std::cerr << "ferry launch: " << error.what() << '\n';
    return error.exit_code();
  }
}

}  // namespace

void add_launch(CLI::App& app, const std::vector<std::string>& program, int& exit_code) {
  CLI::App* const verb = app.add_subcommand(
      "launch", "Start ranks of a program: ferry launch -n 8 [options] -- program arguments");
  const auto options = std::make_shared<LaunchOptions>();
  verb->footer(kLaunchFooter);
  CLI::Option* const ranks =
      verb->add_option("-n,--ranks", options->num_ranks, "Number of ranks, on this host");
  verb->add_option("--hosts", options->hosts_text,
                   "or hosts, [USER@]NAME:RANKS,.., where ranks are started by ssh");
  verb->add_option("--ssh", options->ssh, "Command that gets a host and a line for its shell")
      ->envname("FERRY_SSH")
      ->capture_default_str();
  verb->add_option("--port", options->port,
                   "TCP port of the first host where ranks meet; 0: the one after MASTER_PORT")
      ->envname("FERRY_PORT")
      ->capture_default_str();
  verb->add_flag("--remote-agent", options->remote_agent)->group("");
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
  verb->add_option("--restart", options->most_restarts,
                   "How often ranks that failed are started again, all ranks together")
      ->capture_default_str();
  verb->add_option("--spares", options->num_spares,
                   "Processes of each host that wait for the place of a rank that failed")
      ->capture_default_str();
  verb->callback([options, ranks, &program, &exit_code] {
    if (options->remote_agent) {
      exit_code = run_agent();
      return;
    }
    options->ranks_given = ranks->count() > 0;
    resolve_ranks(*options);
    check(*options, program);
    exit_code = launch(*options, program);
  });
}

}  // namespace ferry::tools
