// Encodes tasks as bytes and orders as lines, and runs the agent; see remote.h. Calls job.h.
#include "tools/launch/remote.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

#include "ferry/status.h"
#include "tools/launch/job.h"
#include "tools/refuse.h"

namespace ferry::tools {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LaunchIdentity, master_addr, run_id, secret, master_port,
                                   ferry_addr, newcomers_addr)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(HostShare, first_rank, num_ranks, world_size, host, num_hosts)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Task, host, directory, identity, share, environment, program,
                                   most_restarts, num_spares)

namespace {

// Replaces the environment of the agent by that of the launcher, as srun does, so that the program
// runs in the same way on each host.
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
  std::cerr << kReportFailed << what << std::endl;
  return exit_code;
}

}  // namespace

std::vector<HostRanks> parse_hosts(std::string_view text) {
  std::vector<HostRanks> hosts;
  for (bool more = true; more;) {
    const std::size_t comma = text.find(',');
    more = comma != std::string_view::npos;
    const std::string_view part = text.substr(0, comma);
    text.remove_prefix(more ? comma + 1 : text.size());
    const std::size_t colon = std::min(part.rfind(':'), part.size());
    const std::string_view count = part.substr(std::min(colon + 1, part.size()));
    HostRanks host{std::string(part.substr(0, colon))};
    const auto [end, error] =
        std::from_chars(count.data(), count.data() + count.size(), host.num_ranks);
    const bool whole = error == std::errc() && end == count.data() + count.size();
    // ssh would read a host that begins with '-' as an option.
    const bool plain = !host.name().empty() && host.target[0] != '-' &&
                       host.target.find_first_of(": \t") == std::string::npos;
    if (!whole || host.num_ranks < 1 || !plain)
      refuse("'{}' is not NAME:RANKS, with a host's name and at least 1 rank", part);
    hosts.push_back(std::move(host));
  }
  return hosts;
}

// The program is in single quotes for the shell. A single quote in its name is written as '\''.
std::string command_there(const std::string& arguments) {
  std::string quoted;
  for (const char c : std::filesystem::read_symlink("/proc/self/exe").string())
    quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return fmt::format("exec '{}' {}", quoted, arguments);
}

// A task is a line with the version and the number of bytes, then MessagePack, whose strings may
// hold any bytes.
std::string encode(const Task& task) {
  const std::vector<std::uint8_t> bytes = nlohmann::json::to_msgpack(task);
  return fmt::format("{} {}\n", FERRY_VERSION, bytes.size()) +
         std::string(bytes.begin(), bytes.end());
}

Task Orders::task() {
  std::size_t line = std::string::npos;
  while ((line = pending_.find('\n')) == std::string::npos) {
    if (!receive()) throw Error(Code::kSystem, "the launcher sent no task");
  }
  std::string version;
  std::size_t size = 0;
  std::istringstream(pending_.substr(0, line)) >> version >> size;
  if (version != FERRY_VERSION) {
    throw Error(Code::kSystem, fmt::format("the launcher is ferry {}, this host has ferry {}",
                                           version, FERRY_VERSION));
  }
  pending_.erase(0, line + 1);
  while (pending_.size() < size) {
    if (!receive()) throw Error(Code::kSystem, "the launcher ended before its task was read");
  }
  const std::string bytes = pending_.substr(0, size);
  pending_.erase(0, size);
  return nlohmann::json::from_msgpack(bytes).get<Task>();
}

bool Orders::receive() {
  std::array<char, 65536> buffer;
  ssize_t got = 0;
  do {
    got = ::read(fd_, buffer.data(), buffer.size());
  } while (got < 0 && errno == EINTR);
  if (got <= 0) {
    fd_ = -1;
    return false;
  }
  pending_.append(buffer.data(), static_cast<std::size_t>(got));
  return true;
}

std::vector<std::string> Orders::read(bool ready) {
  std::vector<std::string> orders;
  if (ready) receive();
  for (std::size_t end; (end = pending_.find('\n')) != std::string::npos;
       pending_.erase(0, end + 1)) {
    orders.push_back(pending_.substr(0, end));
  }
  return orders;
}

int run_agent() {
  try {
    Orders orders(STDIN_FILENO);
    Task task = orders.task();
    take_environment(task.environment);
    enter_directory(task.directory);
    Job job(
        {.num_spares = task.num_spares, .most_restarts = task.most_restarts, .orders = &orders});
    job.start(std::move(task));
    return job.watch();
  } catch (const SpawnError& error) {
    return fail(error.what(), error.exit_code());
  } catch (const std::exception& error) {
    return fail(error.what(), 1);
  }
}

}  // namespace ferry::tools
