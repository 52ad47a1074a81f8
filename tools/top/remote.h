// The `ferry top` of another host, started there by ssh as `ferry launch` starts its agents.
#pragma once

#include <string>
#include <vector>

#include "tools/launch/process.h"
#include "tools/top/sample.h"

namespace ferry::tools {

class RemoteTop {
 public:
  // `ssh`: a command that gets the host and a line for its shell. Throws SpawnError.
  RemoteTop(const std::vector<std::string>& ssh, const std::string& host, double interval_s);
  ~RemoteTop();
  RemoteTop(RemoteTop&& other) noexcept = default;
  RemoteTop& operator=(RemoteTop&&) = delete;

  // Waits for the next of its samples, and adds it. Throws ferry::Error that names the host when it
  // ends, or is silent for too long.
  void add_next(Sample& sample);

 private:
  bool receive();  // false at the end

  std::string host_;
  double interval_s_;
  Child child_;
  std::string pending_;
};

}  // namespace ferry::tools
