// Starts `ferry top` on another host and reads its samples; see remote.h.
#include "tools/top/remote.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <utility>

#include "base/clock.h"
#include "ferry/status.h"
#include "tools/launch/remote.h"

namespace ferry::tools {
namespace {

// The time beyond the interval that the other host may take for the login and for a sample.
constexpr int kPatienceMs = 20'000;

std::vector<std::string> environment_here() {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry; ++entry) entries.emplace_back(*entry);
  return entries;
}

}  // namespace

RemoteTop::RemoteTop(const std::vector<std::string>& ssh, const std::string& host,
                     double interval_s)
    : host_(host), interval_s_(interval_s) {
  ChildSetup setup{.program = ssh};
  setup.program.push_back(host);
  setup.program.push_back(command_there(fmt::format("top --json --interval {}", interval_s)));
  getrlimit(RLIMIT_NOFILE, &setup.descriptor_limit);
  sigemptyset(&setup.signal_mask);
  child_ = spawn(setup, environment_here(), ChildInput::kNothing);
}

RemoteTop::~RemoteTop() {
  // A RemoteTop that was moved from has no child.
  if (!child_.out) return;
  kill(-child_.pid, SIGTERM);
  waitpid(child_.pid, nullptr, 0);
}

void RemoteTop::add_next(Sample& sample) {
  std::size_t line = std::string::npos;
  while ((line = pending_.find('\n')) == std::string::npos) {
    if (receive()) continue;
    char words[1024];
    const ssize_t got = read(child_.err.fd(), words, sizeof words);
    throw Error(Code::kSystem,
                fmt::format("host {}: its ferry top ended: {}", host_,
                            std::string(words, got > 0 ? static_cast<std::size_t>(got) : 0)));
  }
  add_received(sample, pending_.substr(0, line));
  pending_.erase(0, line + 1);
}

bool RemoteTop::receive() {
  const int limit_ms = kPatienceMs + static_cast<int>(1e3 * interval_s_);
  pollfd waited{child_.out.fd(), POLLIN, 0};
  const int ready = poll(&waited, 1, limit_ms);
  if (ready < 0 && errno == EINTR) return true;
  if (ready <= 0)
    throw Error(Code::kTimeout, fmt::format("host {}: no sample in {} s", host_, limit_ms / 1000));
  char bytes[65536];
  const ssize_t got = read(child_.out.fd(), bytes, sizeof bytes);
  if (got > 0) pending_.append(bytes, static_cast<std::size_t>(got));
  return got > 0 || (got < 0 && errno == EAGAIN);
}

}  // namespace ferry::tools
