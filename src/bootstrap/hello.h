// Hello: what a process says of itself before it may join a group, and what two of them must agree
// on. Called by acceptor.cc, member.cc and processes.cc; reads /proc.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace ferry::internal {

struct Hello {
  int protocol = 0;
  std::string version;  // of ferry
  std::string build;    // compiler and sources
  std::string address;  // whole, also where the socket's name had to be cut
  int rank = 0;
  int size = 0;
  std::string nodes;  // of all ranks, as the topology says: "0*4,1*4"
  int pid = 0;        // as the process sees itself
  // What shares memory. The boot id names the machine. Of the namespaces those count without which
  // ferry does not work: pid (liveness), net (abstract sockets) and user (the meaning of uids).
  // Memory goes by descriptor, so ipc and mnt may differ.
  std::string boot_id;
  std::string pid_namespace, net_namespace, user_namespace;
  std::string host;  // for messages only
};

// Names the machine, whatever container a process is in; changes with every boot.
std::string boot_id();

// This process, as `rank` of nodes.size().
Hello own_hello(const std::string& address, int rank, const std::vector<int>& nodes);

// What this machine calls itself, for messages only.
std::string host_name();

// Equal for processes that can share memory and watch each other.
std::string identity(const Hello& hello);

// Lines of "key=value". Unknown keys are ignored; nullopt when rank, size or version are missing,
// or a number is none.
std::string encode(const Hello& hello);
std::optional<Hello> decode_hello(const std::string& text);

// Empty when both may be in one group, else what differs, naming both values.
std::string disagreement(const Hello& a, const Hello& b);

// Likewise for a group of one host, whose ranks share memory.
std::string disagreement_on_host(const Hello& a, const Hello& b);

}  // namespace ferry::internal
