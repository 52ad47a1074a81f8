// A table with one row per launcher: the variables that it sets, and those that name its job.
#include "bootstrap/launcher.h"

#include <arpa/inet.h>

#include <fmt/format.h>

#include <initializer_list>
#include <numeric>
#include <string_view>
#include <vector>

#include "bootstrap/tcp.h"
#include "ferry/status.h"
#include "ferry/topology.h"

namespace ferry::internal {
namespace {

struct Launcher {
  const char* name;
  const char* title;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  // Other variables that must be set before this launcher is chosen.
  std::vector<const char*> required;
  // The variables whose values, joined, name the job. Those that are not set are skipped.
  std::vector<const char*> job;
};

const std::vector<Launcher>& launchers() {
  static const std::vector<Launcher> all = {
      {"address",
       "an explicit address",
       "FERRY_RANK",
       "FERRY_SIZE",
       "FERRY_RANK",
       "FERRY_SIZE",
       {"FERRY_ADDR"},
       {"FERRY_ADDR"}},
      // The default run id is "none" for every static job, so the address of torch's store is part
      // of the name. Ferry uses it only as a name, and never binds that port.
      {"torchrun",
       "torchrun",
       "RANK",
       "WORLD_SIZE",
       "LOCAL_RANK",
       "LOCAL_WORLD_SIZE",
       {},
       {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT"}},
      {"openmpi",
       "Open MPI",
       "OMPI_COMM_WORLD_RANK",
       "OMPI_COMM_WORLD_SIZE",
       "OMPI_COMM_WORLD_LOCAL_RANK",
       "OMPI_COMM_WORLD_LOCAL_SIZE",
       {},
       {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}},
      // Other launchers set PMI_RANK and PMI_SIZE too. Only Hydra sets the two local variables.
      {"hydra",
       "Hydra (MPICH)",
       "PMI_RANK",
       "PMI_SIZE",
       "MPI_LOCALRANKID",
       "MPI_LOCALNRANKS",
       {"MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
       {}},
      // PMIx gives the size only through its own library; users may set PMIX_SIZE.
      {"pmix",
       "PMIx",
       "PMIX_RANK",
       "PMIX_SIZE",
       "PMIX_LOCAL_RANK",
       "PMIX_LOCAL_SIZE",
       {"PMIX_NAMESPACE"},
       {"PMIX_NAMESPACE"}},
      {"slurm",
       "Slurm",
       "SLURM_PROCID",
       "SLURM_STEP_NUM_TASKS",
       "SLURM_LOCALID",
       "",
       {"SLURM_JOB_ID"},
       {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
      {"slurm",
       "Slurm (older)",
       "SLURM_PROCID",
       "SLURM_NTASKS",
       "SLURM_LOCALID",
       "",
       {"SLURM_JOB_ID", "SLURM_STEP_ID"},
       {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
  };
  return all;
}

Error malformed(const std::string& text) { return Error(Code::kInvalidArgument, text); }

// These are below the ports that the kernel assigns (32768 and up).
constexpr int kFirstSlurmPort = 20000, kNumSlurmPorts = 10000, kStepsApart = 16;

using Text = std::optional<std::string>;

// Returns nullopt for an empty variable, too.
Text value_of(const GetEnvironment& get, const std::string& name) {
  Text text = name.empty() ? std::nullopt : get(name);
  return text && !text->empty() ? text : std::nullopt;
}

class Reader {
 public:
  Reader(const GetEnvironment& get, const Launcher& launcher) : get_(get), launcher_(launcher) {}

  // The required variables that are not set, or empty.
  std::vector<std::string> missing() const {
    std::vector<std::string> names;
    for (const char* name : needed()) {
      if (!value(name)) names.push_back(name);
    }
    return names;
  }
  bool any() const { return missing().size() < needed().size(); }

  Launch read(pid_t parent) const {
    Launch launch;
    launch.launcher = launcher_.name;
    launch.size = whole_number(launcher_.size, *value(launcher_.size), 1, Topology::kMostRanks);
    launch.rank = whole_number(launcher_.rank, *value(launcher_.rank), 0, Topology::kMostRanks);
    if (launch.rank >= launch.size) {
      throw malformed(fmt::format("{}={} is outside of 0 to {}, as {}={}", launcher_.rank,
                                  launch.rank, launch.size - 1, launcher_.size, launch.size));
    }
    launch.local_rank = launch.rank;
    if (const auto text = value(launcher_.local_rank)) {
      launch.local_rank = whole_number(launcher_.local_rank, *text, 0, launch.rank);
    }
    if (const auto text = value(launcher_.local_size)) {
      launch.local_size = whole_number(launcher_.local_size, *text, 1, launch.size);
    }
    if (launch.launcher == "torchrun" && launch.local_size > 0) {
      launch.local = {.variable = launcher_.rank,
                      .first = launch.rank - launch.local_rank,
                      .count = launch.local_size,
                      .at_once = value("TORCHELASTIC_RUN_ID").has_value()};
    }
    if (const auto text = value("FERRY_NEWCOMER"))
      launch.newcomer = whole_number("FERRY_NEWCOMER", *text, 0, 1) == 1;
    launch.job = job(parent);
    launch.reason = reason(launch);
    return launch;
  }

  Text value(const std::string& name) const { return value_of(get_, name); }

 private:
  std::vector<const char*> needed() const {
    std::vector<const char*> names = launcher_.required;
    names.insert(names.end(), {launcher_.rank, launcher_.size});
    return names;
  }

  std::string job(pid_t parent) const {
    if (launcher_.name == std::string_view("address")) return *value("FERRY_ADDR");
    std::string text = launcher_.name;
    for (const char* name : launcher_.job) {
      if (const auto part = value(name)) text += "-" + *part;
    }
    if (launcher_.job.empty()) text += fmt::format("-{}", parent);
    return text;
  }

  std::string reason(const Launch& launch) const {
    return fmt::format("{}={} and {}={} are set{}", launcher_.rank, launch.rank, launcher_.size,
                       launch.size, launch.newcomer ? ", and FERRY_NEWCOMER=1" : "");
  }

  const GetEnvironment& get_;
  const Launcher& launcher_;
};

// The variables that show that the job spans hosts; empty if none does. Sets the local size of a
// Slurm job on one node.
std::string several_hosts(const Reader& reader, const Launcher& launcher, Launch& launch) {
  if (launch.launcher == "slurm") {
    const bool step = reader.value("SLURM_STEP_NUM_NODES").has_value();
    const std::string name = step ? "SLURM_STEP_NUM_NODES" : "SLURM_NNODES";
    const int nodes = whole_number(name, reader.value(name).value_or("1"), 1, Topology::kMostRanks);
    if (nodes > 1) return fmt::format("{}={}", name, nodes);
    launch.local_size = launch.size;
  }
  if (launch.local_size == 0 || launch.local_size == launch.size) return "";
  return fmt::format("{}={}, {}={}", launcher.local_size, launch.local_size, launcher.size,
                     launch.size);
}

bool is_ipv6(const std::string& text) {
  in6_addr address;
  return inet_pton(AF_INET6, text.substr(0, text.find('%')).c_str(), &address) == 1;
}

// Reads a host: a name or an address. An IPv6 address may be in brackets.
std::string master_host(const std::string& text) {
  const bool bracketed = text.size() > 2 && text.front() == '[' && text.back() == ']';
  std::string host = bracketed ? text.substr(1, text.size() - 2) : text;
  if (is_ipv6(host) || (!bracketed && host.find(':') == host.npos)) return host;
  throw malformed(
      fmt::format("MASTER_ADDR=\"{}\" is not a host: need a name or an address, and the "
                  "port in MASTER_PORT or FERRY_PORT",
                  text));
}

Text host_of(const GetEnvironment& get, const Launch& launch) {
  if (const Text host = value_of(get, "MASTER_ADDR")) return master_host(*host);
  if (launch.launcher != "slurm") return std::nullopt;
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
    if (const Text nodes = value_of(get, name)) return first_host(*nodes);
  }
  return std::nullopt;
}

std::optional<int> port_of(const GetEnvironment& get, const Launch& launch) {
  if (const Text port = value_of(get, "FERRY_PORT"))
    return whole_number("FERRY_PORT", *port, 1, kMostPort);
  if (const Text port = value_of(get, "MASTER_PORT"))
    return whole_number("MASTER_PORT", *port, 1, kMostPort - 1) + 1;
  if (launch.launcher != "slurm") return std::nullopt;
  const auto number = [&](const char* name) {
    const Text text = value_of(get, name);
    return text ? std::strtoull(text->c_str(), nullptr, 10) : 0;
  };
  const auto job = number("SLURM_JOB_ID") * kStepsApart + number("SLURM_STEP_ID");
  return kFirstSlurmPort + static_cast<int>(job % kNumSlurmPorts);
}

std::string address_across_hosts(const GetEnvironment& get, const Launch& launch,
                                 const std::string& why) {
  const Text host = host_of(get, launch);
  const std::optional<int> port = port_of(get, launch);
  if (host && port) return TcpAddress{{*host}, *port}.text();
  throw Error(
      Code::kInvalidArgument,
      fmt::format("{} started {} ranks on several hosts ({}) and does not tell where rank 0 "
                  "is: set FERRY_ADDR=tcp://host:port (rank 0's host and a free port "
                  "there), or MASTER_ADDR and FERRY_PORT, the same for all ranks",
                  launch.launcher, launch.size, why));
}

// Sets a TCP address, which can be combined with the ranks of any launcher, and which names the job
// as well.
Launch meet_at(const std::string& address, Launch launch) {
  parse_tcp(address);
  launch.job = launch.address = address;
  if (launch.launcher == "address") launch.local_size = 0;
  return launch;
}

Error nothing_found(const std::vector<std::string>& looked_for) {
  return malformed(fmt::format(
      "no launcher was found in the environment; looked for {}. Start the ranks with `ferry "
      "launch`, torchrun, mpirun or srun, or set FERRY_ADDR, FERRY_RANK and FERRY_SIZE",
      fmt::join(looked_for, ", ")));
}

// If FERRY_GROUP_SIZE is set, the group has that many ranks, and begins with those of the job.
Launch in_larger_group(const Reader& reader, Launch launch) {
  const Text text = reader.value("FERRY_GROUP_SIZE");
  if (!text) return launch;
  const int size = whole_number("FERRY_GROUP_SIZE", *text, launch.size, Topology::kMostRanks);
  if (size == launch.size) return launch;
  launch.members.resize(launch.size);
  std::iota(launch.members.begin(), launch.members.end(), 0);
  launch.size = size;
  launch.reason += fmt::format(", and FERRY_GROUP_SIZE={}", size);
  return launch;
}

}  // namespace

std::string first_host(const std::string& nodes) {
  std::string host;
  // `inside`: the current character is in brackets. `skip`: it is behind the first number of the
  // brackets.
  bool inside = false, skip = false;
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

Launch launch_from_environment(const GetEnvironment& get, pid_t parent) {
  std::vector<std::string> looked_for;
  for (const Launcher& launcher : launchers()) {
    const Reader reader(get, launcher);
    const std::vector<std::string> missing = reader.missing();
    const std::string address = reader.value("FERRY_ADDR").value_or("");
    const bool given = !address.empty();
    if (missing.empty()) {
      Launch launch = reader.read(parent);
      if (is_tcp(address)) return in_larger_group(reader, meet_at(address, std::move(launch)));
      const std::string why = several_hosts(reader, launcher, launch);
      launch.address = why.empty() ? launch.job : address_across_hosts(get, launch, why);
      if (!why.empty() && launcher.job.empty())
        launch.job = launch.address;  // the parent's pid differs between hosts
      return in_larger_group(reader, std::move(launch));
    }
    const bool half = reader.value("FERRY_RANK") || reader.value("FERRY_SIZE");
    if (given && (half || !is_tcp(address))) {
      throw malformed(
          fmt::format("FERRY_ADDR is set and needs FERRY_RANK and FERRY_SIZE: {} not set",
                      fmt::join(missing, ", ")));
    }
    looked_for.push_back(fmt::format("{} ({} {})", launcher.title, fmt::join(missing, ", "),
                                     reader.any() ? "missing" : "not set"));
  }
  throw nothing_found(looked_for);
}

}  // namespace ferry::internal
