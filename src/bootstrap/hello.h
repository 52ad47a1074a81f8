// Hello: the properties that a process sends before it joins a group. Some of them must be equal on
// all ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace ferry::internal {

struct Hello {
  int protocol = 0;
  std::string version;  // the version of ferry
  std::string build;    // the compiler and the sources
  std::string address;  // complete, even if the name of the socket is shortened
  int rank = 0;
  int size = 0;
  std::string nodes;    // the nodes of all ranks in the topology: "0*4,1*4"
  std::string members;  // the ranks that the group begins with: "all", or such as "ranks 0 to 5"
  int pid = 0;          // the number in the pid namespace of the process
  // Processes with equal values of these fields share memory. The boot id names the machine. The
  // namespaces that ferry needs are pid (for liveness), net (for abstract sockets) and user (for
  // the meaning of uids). Memory is shared by descriptor, so the namespaces ipc and mnt may differ.
  std::string boot_id;
  std::string pid_namespace, net_namespace, user_namespace;
  std::string host;  // for messages only
};

// Names the machine, in any container. It changes with every boot.
std::string boot_id();

// The network namespace of this process, such as "net:[4026531840]". An abstract socket can be
// found only inside its namespace.
std::string net_namespace();

// The hello of this process as `rank` of nodes.size() ranks.
Hello own_hello(const std::string& address, int rank, const std::vector<int>& nodes);

// The host name, for messages only.
std::string host_name();

// A text that is equal for processes that can share memory and watch each other.
std::string identity(const Hello& hello);

// A hello is encoded as lines of "key=value". decode_hello() ignores unknown keys. It returns
// nullopt if rank, size or version are missing, or if a number cannot be parsed.
std::string encode(const Hello& hello);
std::optional<Hello> decode_hello(const std::string& text);

// Returns the first field that differs, with both values. Empty if both processes may be in one
// group.
std::string disagreement(const Hello& a, const Hello& b);

// Compares in the same way for a group of one host, whose ranks share memory.
std::string disagreement_on_host(const Hello& a, const Hello& b);

}  // namespace ferry::internal
