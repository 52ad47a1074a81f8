// Hello: the properties of a process that it sends before it joins a group, and which of them must
// agree.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace ferry::internal {

struct Hello {
  int protocol = 0;
  std::string version;  // of ferry
  std::string build;    // compiler and sources
  std::string address;  // complete, even where the socket's name is cut
  int rank = 0;
  int size = 0;
  std::string nodes;  // of all ranks, in the topology: "0*4,1*4"
  int pid = 0;        // in the process's own pid namespace
  // Processes that agree in these share memory. The boot id names the machine. The namespaces that
  // ferry needs are pid (liveness), net (abstract sockets) and user (the meaning of uids). Memory
  // is shared by descriptor, so ipc and mnt may differ.
  std::string boot_id;
  std::string pid_namespace, net_namespace, user_namespace;
  std::string host;  // for messages only
};

// Names the machine, whatever container a process is in; changes with every boot.
std::string boot_id();

// The network of this process, "net:[4026531840]". Abstract sockets are found inside it only.
std::string net_namespace();

// This process, as `rank` of nodes.size().
Hello own_hello(const std::string& address, int rank, const std::vector<int>& nodes);

// The host name, for messages only.
std::string host_name();

// Equal for processes that can share memory and watch each other.
std::string identity(const Hello& hello);

// Lines of "key=value". Unknown keys are ignored; nullopt when rank, size or version are missing,
// or a number cannot be parsed.
std::string encode(const Hello& hello);
std::optional<Hello> decode_hello(const std::string& text);

// Empty when both may be in one group, else the field that differs, with both values.
std::string disagreement(const Hello& a, const Hello& b);

// The same for a group of one host, whose ranks share memory.
std::string disagreement_on_host(const Hello& a, const Hello& b);

}  // namespace ferry::internal
