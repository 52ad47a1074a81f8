// A `ferry top` that ssh has started on another host, as `ferry launch` starts its agents.
#pragma once

#include <string>
#include <vector>

#include "tools/launch/process.h"
#include "tools/top/sample.h"

namespace ferry::tools {

class RemoteTop {
 public:
  // `ssh` is the command to which the host and a shell command are appended. Throws SpawnError.
  RemoteTop(const std::vector<std::string>& ssh, const std::string& host, double interval_s);
  ~RemoteTop();
  RemoteTop(RemoteTop&& other) noexcept = default;
  RemoteTop& operator=(RemoteTop&&) = delete;

  // Waits for the next sample of the other host and adds it to `sample`. Throws ferry::Error that
  // names the host if the other `ferry top` ends, or sends nothing for too long.
  void add_next(Sample& sample);

 private:
  bool receive();  // returns false at the end of the output

  std::string host_;
  double interval_s_;
  Child child_;
  std::string pending_;
};

}  // namespace ferry::tools
