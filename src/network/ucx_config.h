// UcxConfig: the configuration of UCX. It comes from the environment, and from ferry's choices for
// variables that are not set.
#pragma once

#include <string>
#include <vector>

#include "network/ucx_library.h"

namespace ferry::internal {

// The network interfaces and RDMA devices of this host.
std::vector<std::string> network_devices();

class UcxConfig {
 public:
  // Throws Error(kInvalidArgument) for a device that this host does not have, and Error(kSystem)
  // for a value that UCX refuses.
  explicit UcxConfig(const UcxLibrary& ucx);
  ~UcxConfig() { ucx_.config_release(config_); }
  UcxConfig(const UcxConfig&) = delete;
  UcxConfig& operator=(const UcxConfig&) = delete;

  const ucp_config_t* read() const noexcept { return config_; }

 private:
  void choose();
  void prefer(const std::string& transport, const std::string& name, const char* value);
  void prefer(const std::string& name, const char* value);
  bool is_before_1_14() const;

  const UcxLibrary& ucx_;
  ucp_config_t* config_ = nullptr;
};

}  // namespace ferry::internal
