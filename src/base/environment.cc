#include "base/environment.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <vector>

#include "ferry/status.h"

namespace ferry::internal {
namespace {

constexpr EnvironmentVariable kVariables[] = {
    {"FERRY_ADDR", "tcp://host:port, or any text of at most 64 bytes",
     "where the ranks of a job meet; host and port are rank 0's"},
    {"FERRY_RANK", "0 to FERRY_SIZE - 1", "this rank, with FERRY_ADDR and FERRY_SIZE"},
    {"FERRY_SIZE", "1 to 65536", "the number of ranks, with FERRY_ADDR and FERRY_RANK"},
    {"FERRY_GROUP_SIZE", "the number of ranks of the job, or more",
     "the number of ranks of a group that begins with those of the job; the others come later"},
    {"FERRY_NEWCOMER", "0 or 1",
     "1: this process takes the place of its rank, which a running group lacks; `ferry launch "
     "--restart` sets it"},
    {"FERRY_SPARE", "0 or 1",
     "1: this process has no rank yet; its `ferry.init()` waits for the place of a lost rank; "
     "`ferry "
     "launch --spares` sets it"},
    {"FERRY_PORT", "1 to 65535",
     "rank 0's port between hosts, where the launcher tells the host only"},
    {"FERRY_SECRET", "16 or more characters, 4 of them different",
     "lets ranks of other hosts in: equal on all ranks of a job, and known to nobody else"},
    {"FERRY_SOCKET_IFNAME", "names of network interfaces, comma-separated",
     "what is used between hosts: rank 0 listens there, and UCX sends there unless "
     "UCX_NET_DEVICES says otherwise"},
    {"FERRY_TOPOLOGY", "levels such as host:2,rank:4",
     "the levels of groups whose GroupOptions name none"},
    {"FERRY_PROGRESS", "inline or thread",
     "who moves messages between nodes: calls of ferry (the default), or a thread of its own"},
    {"FERRY_SSH", "a command", "what `ferry launch --hosts` reaches other hosts by, as --ssh does"},
    {"FERRY_LOG", "warn, info or debug", "prints lines with rank, host and pid to stderr"},
    {"FERRY_METRICS", "file:PATH, port:N or ADDRESS:N",
     "the counters of a node's ranks as Prometheus text, in a file that is new every second (%p in "
     "PATH: the process), at 127.0.0.1:N, or at port N of the interface with that address "
     "(10.0.0.1:9400, [fd00::1]:9400; 0.0.0.0 and [::]: all)"},
    {"FERRY_TRACE", "a path",
     "records digests of every dispatch and combine in a file for each rank, for `ferry trace "
     "diff`: %r in the path is the rank, without it .RANK is added"},
    {"FERRY_TRACE_FROM", "0 to 2000000000",
     "the first record of each file that also names tokens and k, where the files grow too large "
     "for all; 0 if not set"},
};

// The index of the variable's value in `values`, or nullopt if the variable is not set.
std::optional<std::size_t> choice(const char* name, const std::vector<std::string>& values) {
  const std::optional<std::string> text = environment(name);
  if (!text) return std::nullopt;
  const auto found = std::find(values.begin(), values.end(), *text);
  if (found != values.end()) return static_cast<std::size_t>(found - values.begin());
  throw Error(Code::kInvalidArgument,
              fmt::format("{}=\"{}\" is none of {}", name, *text, fmt::join(values, ", ")));
}

// Whether a text is an IP address: "10.0.0.1" or "[fd00::1]". Host names are refused, because a
// name can have several addresses.
bool is_number_of_host(const std::string& text) {
  in6_addr address;
  const bool brackets = text.size() > 2 && text.front() == '[' && text.back() == ']';
  return brackets ? inet_pton(AF_INET6, text.substr(1, text.size() - 2).c_str(), &address) == 1
                  : inet_pton(AF_INET, text.c_str(), &address) == 1;
}

}  // namespace

std::span<const EnvironmentVariable> environment_variables() noexcept { return kVariables; }

std::optional<std::string> environment(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  if (value == nullptr || *value == 0) return std::nullopt;
  return value;
}

int whole_number(const std::string& name, const std::string& text, int least, int most) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && stop == end && value >= least && value <= most) return value;
  throw Error(Code::kInvalidArgument, fmt::format("{}=\"{}\" is not a whole number from {} to {}",
                                                  name, text, least, most));
}

LogLevel log_level_in_environment() {
  const auto level = choice("FERRY_LOG", {"warn", "info", "debug"});
  return level ? static_cast<LogLevel>(1 + *level) : LogLevel::kNone;
}

bool progress_thread_in_environment() {
  return choice("FERRY_PROGRESS", {"inline", "thread"}).value_or(0) == 1;
}

MetricsPlace metrics_in_environment() {
  MetricsPlace place{.text = environment_or_empty("FERRY_METRICS"), .file = "", .address = ""};
  const std::string& text = place.text;
  const std::size_t colon = text.rfind(':');
  if (text.starts_with("port:")) {
    place.address = "127.0.0.1";
    place.port = whole_number("FERRY_METRICS", text.substr(5), 1, 65535);
  } else if (text.starts_with("file:") && text.size() > 5) {
    place.file = text.substr(5);
    if (const std::size_t at = place.file.find("%p"); at != std::string::npos)
      place.file.replace(at, 2, std::to_string(getpid()));
  } else if (colon != std::string::npos && is_number_of_host(text.substr(0, colon))) {
    place.address = text.substr(0, colon);
    place.port = whole_number("FERRY_METRICS", text.substr(colon + 1), 1, 65535);
  } else if (!text.empty()) {
    throw Error(
        Code::kInvalidArgument,
        fmt::format("FERRY_METRICS=\"{}\" is none of file:PATH, port:N and ADDRESS:N", text));
  }
  return place;
}

TracePlace trace_place(const std::string& name) {
  const std::size_t at = name.find("%r");
  if (at != std::string::npos && name.find('/', at) != std::string::npos)
    throw Error(
        Code::kInvalidArgument,
        fmt::format("FERRY_TRACE=\"{}\": %r must be in the name of the file, not in that of "
                    "its directory",
                    name));
  return {.file = name.empty() || at != std::string::npos ? name : name + ".%r"};
}

TracePlace trace_in_environment() {
  TracePlace place = trace_place(environment_or_empty("FERRY_TRACE"));
  constexpr int kMostFrom = 2'000'000'000;
  if (const auto from = environment("FERRY_TRACE_FROM"))
    place.from = whole_number("FERRY_TRACE_FROM", *from, 0, kMostFrom);
  return place;
}

std::string TracePlace::name_of(int rank) const {
  const std::size_t at = file.find("%r");
  return file.substr(0, at) + std::to_string(rank) + file.substr(at + 2);
}

}  // namespace ferry::internal
