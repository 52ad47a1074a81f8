#include "network/ucx_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <net/if.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "base/environment.h"
#include "ferry/status.h"

namespace ferry::internal {
namespace {

constexpr const char* kTcpPiece = "264k";  // the bytes of a packet with UCX's heads

std::vector<std::string> rdma_devices() {
  std::vector<std::string> names;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/class/infiniband", none))
    names.push_back(entry.path().filename());
  return names;
}

// Throws Error(kInvalidArgument) for a device that this host does not have. RDMA devices may be
// named with a port, such as "mlx5_0:1".
void check_devices(std::string_view wanted) {
  const std::vector<std::string> there = network_devices();
  while (!wanted.empty()) {
    const std::string_view name = wanted.substr(0, wanted.find(','));
    const std::string_view device = name.substr(0, name.find(':'));
    if (std::find(there.begin(), there.end(), device) == there.end()) {
      throw Error(Code::kInvalidArgument,
                  fmt::format("FERRY_SOCKET_IFNAME names '{}', which is not a network interface of "
                              "this host; it has {}",
                              name, fmt::join(there, ", ")));
    }
    wanted.remove_prefix(std::min(name.size() + 1, wanted.size()));
  }
}

}  // namespace

std::vector<std::string> network_devices() {
  std::vector<std::string> names = rdma_devices();
  if (struct if_nameindex* interfaces = if_nameindex(); interfaces != nullptr) {
    for (struct if_nameindex* i = interfaces; i->if_name != nullptr; ++i)
      names.emplace_back(i->if_name);
    if_freenameindex(interfaces);
  }
  return names;
}

UcxConfig::UcxConfig(const UcxLibrary& ucx) : ucx_(ucx) {
  const ucs_status_t status = ucx_.config_read(nullptr, nullptr, &config_);
  if (status != UCS_OK) {
    throw Error(Code::kSystem,
                fmt::format("UCX cannot read its configuration: {}", ucx_.status_string(status)));
  }
  try {
    choose();
  } catch (...) {
    ucx_.config_release(config_);
    throw;
  }
}

void UcxConfig::choose() {
  // Ranks that share memory use no transport. Nodes of one machine may be in namespaces between
  // which UCX's shared memory does not work.
  prefer("SHM_DEVICES", "");
  // A segment holds a whole packet. This saves a third of the processor time over TCP. With its
  // default of 64 KiB, UCX would join every packet from pieces.
  prefer("TCP", "RX_SEG_SIZE", kTcpPiece);
  // UCX 1.13 aborts if a connection ends while it sends over TCP without a copy. The copy takes no
  // more time than the system calls that it saves (docs/decisions/between_nodes.md).
  if (rdma_devices().empty()) {
    prefer("TCP", "TX_SEG_SIZE", kTcpPiece);
    prefer("ZCOPY_THRESH", "inf");
  }
  // Without this, UCX's call to connect blocks for minutes if a firewall drops its packets.
  prefer("TCP", "CONN_NB", "y");
  // Keepalive probes a silent peer: a host that was restarted replies that it does not have the
  // connection. TcpSockets sets how long a peer may be silent.
  prefer("KEEPALIVE_INTERVAL", "1s");
  prefer("TCP", "KEEPIDLE", "1s");
  prefer("TCP", "KEEPINTVL", "1s");
  if (const auto wanted = environment("FERRY_SOCKET_IFNAME")) {
    if (!environment("UCX_NET_DEVICES")) check_devices(*wanted);
    prefer("NET_DEVICES", wanted->c_str());
  }
}

// Sets an option in the table of `transport`. UCX 1.13 needs the bare name there. Later versions
// need the name with the transport in front, as in the environment.
void UcxConfig::prefer(const std::string& transport, const std::string& name, const char* value) {
  const std::string full_name = transport + "_" + name;
  const std::string& key = is_before_1_14() ? name : full_name;
  // UCX refuses the option if it lacks the transport.
  if (!environment("UCX_" + full_name)) ucx_.config_modify(config_, key.c_str(), value);
}

void UcxConfig::prefer(const std::string& name, const char* value) {
  if (environment("UCX_" + name)) return;
  const ucs_status_t status = ucx_.config_modify(config_, name.c_str(), value);
  if (status != UCS_OK) {
    throw Error(Code::kSystem,
                fmt::format("UCX refuses {}={}: {}", name, value, ucx_.status_string(status)));
  }
}

bool UcxConfig::is_before_1_14() const {
  unsigned major = 0, minor = 0, release = 0;
  ucx_.version(&major, &minor, &release);
  return major == 1 && minor < 14;
}

}  // namespace ferry::internal
