// Reading hosts and ports.
#include "bootstrap/across_hosts.h"

#include <fmt/format.h>

#include "bootstrap/tcp.h"
#include "ferry/status.h"

namespace ferry::internal {
namespace {

constexpr int kMostPort = 65535;
// Below the ports that the kernel gives away (32768 and up).
constexpr int kFirstSlurmPort = 20000, kNumSlurmPorts = 10000, kStepsApart = 16;

using Text = std::optional<std::string>;

Text value(const GetEnvironment& get, const char* name) {
  Text text = get(name);
  return text && !text->empty() ? text : std::nullopt;
}

Text host_of(const GetEnvironment& get, const Launch& launch) {
  if (Text host = value(get, "MASTER_ADDR")) return host;
  if (launch.launcher != "slurm") return std::nullopt;
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
    if (const Text nodes = value(get, name)) return first_host(*nodes);
  }
  return std::nullopt;
}

std::optional<int> port_of(const GetEnvironment& get, const Launch& launch) {
  if (const Text port = value(get, "FERRY_PORT"))
    return whole_number("FERRY_PORT", *port, 1, kMostPort);
  if (const Text port = value(get, "MASTER_PORT"))
    return whole_number("MASTER_PORT", *port, 1, kMostPort - 1) + 1;
  if (launch.launcher != "slurm") return std::nullopt;
  const auto number = [&](const char* name) {
    const Text text = value(get, name);
    return text ? std::strtoull(text->c_str(), nullptr, 10) : 0;
  };
  const auto job = number("SLURM_JOB_ID") * kStepsApart + number("SLURM_STEP_ID");
  return kFirstSlurmPort + static_cast<int>(job % kNumSlurmPorts);
}

}  // namespace

std::string address_across_hosts(const GetEnvironment& get, const Launch& launch,
                                 const std::string& why) {
  const Text host = host_of(get, launch);
  const std::optional<int> port = port_of(get, launch);
  if (host && port) return TcpAddress{{*host}, *port}.text();
  throw Error(Code::kInvalidArgument,
              fmt::format("{} started {} ranks on several hosts ({}) and does not say where rank 0 "
                          "is: set FERRY_ADDR=tcp://host:port (rank 0's host and a free port "
                          "there), or MASTER_ADDR and FERRY_PORT, the same for all ranks",
                          launch.launcher, launch.size, why));
}

std::string first_host(const std::string& nodes) {
  std::string host;
  bool inside = false, skip = false;  // brackets, and what follows the first number in them
  for (const char c : nodes) {
    if (c == ',' && !inside) break;
    if (c == '[' || c == ']') {
      inside = c == '[';
      skip = false;
      continue;
    }
    skip = skip || (inside && (c == ',' || c == '-'));
    if (!skip) host += c;
  }
  return host;
}

}  // namespace ferry::internal
