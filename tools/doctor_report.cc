// Text and JSON of `ferry doctor`. Called by doctor.cc; calls doctor_advice.cc.
#include "doctor_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>

namespace ferry::tools {
namespace {

using nlohmann::json;

void section(std::string& text, const char* title) { text += fmt::format("\n{}\n", title); }

// Long values go on below themselves.
void line(std::string& text, const std::string& name, std::string_view value) {
  constexpr std::size_t kColumns = 80;
  std::string label = name;
  while (value.size() > kColumns) {
    const std::size_t blank = value.rfind(' ', kColumns);
    if (blank == std::string_view::npos) break;
    text += fmt::format("  {:<16} {}\n", label, value.substr(0, blank));
    value.remove_prefix(blank + 1);
    label.clear();
  }
  text += fmt::format("  {:<16} {}\n", label, value);
}

std::string plural(int count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string caches_text(const Machine& machine) {
  std::string text;
  for (const Cache& cache : machine.caches) {
    text += fmt::format("{}L{} {} x {}", text.empty() ? "" : ", ", cache.level, cache.count,
                        bytes_text(cache.bytes));
    if (cache.shared_by > 1) text += fmt::format(" (each for {} threads)", cache.shared_by);
  }
  return text.empty() ? "unknown" : text;
}

std::string word_or_unknown(const std::string& word) { return word.empty() ? "unknown" : word; }

void add_processors(std::string& text, const Findings& findings) {
  const Machine& machine = findings.machine;
  section(text, "processors");
  line(text, "name", word_or_unknown(machine.processor));
  line(text, "usable",
       fmt::format("{} of {} hardware threads (cpus {})", machine.cpus.size(), machine.num_threads,
                   cpus_text(machine.cpus)));
  line(text, "layout",
       fmt::format("{}, {}, {}", plural(machine.num_sockets, "socket"),
                   plural(machine.num_numa, "NUMA domain"), plural(machine.num_cores, "core")));
  line(text, "caches", caches_text(machine));
  line(text, "time limit",
       machine.cpu_limit > 0 ? fmt::format("{:.3g} processors", machine.cpu_limit) : "none");
  line(text, "SIMD",
       findings.simd.empty() ? "none"
                             : fmt::format("{} in use; available {}", findings.simd.front(),
                                           fmt::join(findings.simd, ", ")));
}

void add_memory(std::string& text, const Machine& machine) {
  section(text, "memory");
  line(text, "available",
       fmt::format("{} of {}", bytes_text(machine.memory_available),
                   bytes_text(machine.memory_bytes)));
  line(text, "limits",
       fmt::format("address space {}, file size {}, locked {}, open files {}",
                   bytes_text(machine.limit_address_space), bytes_text(machine.limit_file_size),
                   bytes_text(machine.limit_locked),
                   machine.limit_open_files == kUnlimited
                       ? "unlimited"
                       : std::to_string(machine.limit_open_files)));
  line(text, "huge pages",
       fmt::format("private {}, shared {}", word_or_unknown(machine.thp),
                   word_or_unknown(machine.shmem_thp)));
}

void add_kernel(std::string& text, const Findings& findings) {
  section(text, "kernel");
  line(text, "release", word_or_unknown(findings.machine.kernel));
  for (const Trial& trial : findings.trials) {
    const char* const verdict = trial.ok ? "ok" : trial.needed ? "FAILED" : "no";
    line(text, trial.name, fmt::format("{}: {}", verdict, trial.detail));
  }
}

void add_transports(std::string& text, const Findings& findings) {
  const Network& network = findings.network;
  section(text, "on a host");
  line(text, "shared memory", problems(findings).empty() ? "yes" : "no");
  section(text, "between hosts");
  line(text, "UCX",
       network.ucx.empty()
           ? "not found (ranks of one host do not need it)"
           : fmt::format("{} found (ranks of one host do not use it)", network.ucx));
  line(text, "link", network.no_link.empty() ? network.link : "none: " + network.no_link);
  for (const NetworkInterface& interface : network.interfaces) {
    line(text, interface.name,
         fmt::format("{}{}", interface.address, interface.up ? "" : ", down"));
  }
}

void add_speed(std::string& text, const Findings& findings) {
  if (!findings.speed) return;
  const Speed& speed = *findings.speed;
  section(text, "speed, measured now");
  line(text, "first touch",
       fmt::format("{:.2f} us for 4 KiB of shared memory, {:.2f} us as ferry's windows do it",
                   speed.touch_ns / 1e3, speed.commit_ns / 1e3));
  line(text, "flag",
       fmt::format("{:.3f} us from one {} to another", speed.hop_ns / 1e3,
                   speed.hop_on_two_cpus ? "processor" : "thread of this processor"));
  line(text, "copy",
       fmt::format("{:.1f} GB/s of payload, one thread, beyond the caches",
                   speed.copy_bytes_per_s / 1e9));
}

void add_launcher(std::string& text, const Findings& findings) {
  section(text, "launcher");
  if (!findings.launch) return line(text, "found", "none: " + findings.no_launch);
  line(text, "found",
       fmt::format("{}, rank {} of {}: {}", findings.launch->launcher, findings.launch->rank,
                   findings.launch->size, findings.launch->reason));
}

void add_advice(std::string& text, const std::vector<Advice>& advices) {
  for (const Advice& advice : advices) {
    text += fmt::format("  - {}\n    {}\n    remedy: {}\n", advice.finding, advice.consequence,
                        advice.remedy);
  }
}

json advice_json(const std::vector<Advice>& advices) {
  json list = json::array();
  for (const Advice& advice : advices) {
    list.push_back({{"finding", advice.finding},
                    {"consequence", advice.consequence},
                    {"remedy", advice.remedy}});
  }
  return list;
}

json number_or_null(std::uint64_t value) {
  return value == kUnlimited ? json(nullptr) : json(value);
}

json machine_json(const Machine& machine) {
  json caches = json::array();
  for (const Cache& cache : machine.caches) {
    caches.push_back({{"level", cache.level},
                      {"bytes", cache.bytes},
                      {"count", cache.count},
                      {"shared_by", cache.shared_by}});
  }
  return {{"processor", machine.processor},
          {"kernel", machine.kernel},
          {"cpus", machine.cpus},
          {"sockets", machine.num_sockets},
          {"numa_domains", machine.num_numa},
          {"cores", machine.num_cores},
          {"hardware_threads", machine.num_threads},
          {"caches", caches},
          {"cpu_limit", machine.cpu_limit > 0 ? json(machine.cpu_limit) : json(nullptr)},
          {"memory_bytes", machine.memory_bytes},
          {"memory_available_bytes", machine.memory_available},
          {"limits",
           {{"address_space_bytes", number_or_null(machine.limit_address_space)},
            {"file_size_bytes", number_or_null(machine.limit_file_size)},
            {"locked_bytes", number_or_null(machine.limit_locked)},
            {"open_files", number_or_null(machine.limit_open_files)}}},
          {"huge_pages", {{"private", machine.thp}, {"shared", machine.shmem_thp}}}};
}

json trials_json(const std::vector<Trial>& trials) {
  json list = json::array();
  for (const Trial& trial : trials) {
    list.push_back({{"name", trial.name},
                    {"needed", trial.needed},
                    {"ok", trial.ok},
                    {"detail", trial.detail}});
  }
  return list;
}

json speed_json(const Findings& findings) {
  if (!findings.speed) return nullptr;
  const Speed& speed = *findings.speed;
  return {{"first_touch_ns", speed.touch_ns},
          {"first_touch_window_ns", speed.commit_ns},
          {"flag_ns", speed.hop_ns},
          {"flag_on_two_cpus", speed.hop_on_two_cpus},
          {"copy_bytes_per_s", speed.copy_bytes_per_s}};
}

json network_json(const Network& network) {
  json interfaces = json::array();
  for (const NetworkInterface& interface : network.interfaces) {
    interfaces.push_back(
        {{"name", interface.name}, {"address", interface.address}, {"up", interface.up}});
  }
  return {{"ucx", network.ucx.empty() ? json(nullptr) : json(network.ucx)},
          {"link", network.link.empty() ? json(nullptr) : json(network.link)},
          {"no_link", network.no_link.empty() ? json(nullptr) : json(network.no_link)},
          {"interfaces", interfaces}};
}

json launcher_json(const Findings& findings) {
  if (!findings.launch) return {{"found", nullptr}, {"reason", findings.no_launch}};
  return {{"found", findings.launch->launcher},
          {"reason", findings.launch->reason},
          {"rank", findings.launch->rank},
          {"size", findings.launch->size}};
}

}  // namespace

std::string bytes_text(std::uint64_t bytes) {
  if (bytes == kUnlimited) return "unlimited";
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024; ++unit) value /= 1024;
  return fmt::format("{:.4g} {}", value, kUnits[unit]);
}

std::string cpus_text(const std::vector<int>& cpus) {
  std::string text;
  for (std::size_t first = 0, last = 0; first < cpus.size(); first = last + 1) {
    for (last = first; last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1;) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", cpus[first]);
    if (last > first) text += fmt::format("-{}", cpus[last]);
  }
  return text;
}

std::string doctor_text(const Findings& findings) {
  std::string text = "ferry " FERRY_VERSION "\n";
  add_processors(text, findings);
  add_memory(text, findings.machine);
  add_kernel(text, findings);
  add_transports(text, findings);
  add_speed(text, findings);
  add_launcher(text, findings);
  const std::vector<Advice> broken = problems(findings), slow = advise(findings);
  if (!broken.empty()) {
    section(text, "ferry cannot work here");
    add_advice(text, broken);
  }
  section(text, "what to change for speed");
  text += slow.empty() ? "  nothing: this machine is as ferry likes it\n" : "";
  add_advice(text, slow);
  if (broken.empty()) text += "\nferry can work here.\n";
  return text;
}

std::string doctor_json(const Findings& findings) {
  const json object = {{"version", FERRY_VERSION},
                       {"ok", problems(findings).empty()},
                       {"machine", machine_json(findings.machine)},
                       {"simd", findings.simd},
                       {"trials", trials_json(findings.trials)},
                       {"network", network_json(findings.network)},
                       {"speed", speed_json(findings)},
                       {"launcher", launcher_json(findings)},
                       {"problems", advice_json(problems(findings))},
                       {"advice", advice_json(advise(findings))}};
  return object.dump(2) + "\n";
}

}  // namespace ferry::tools
