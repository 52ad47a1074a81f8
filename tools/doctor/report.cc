// Writes the report of `ferry doctor`, one section per function. Calls advice.cc.
#include <fmt/format.h>

#include "tools/doctor/findings.h"
#include "tools/text.h"

namespace ferry::tools {
namespace {

using Json = Report::Json;

std::string known(const std::string& word) { return word.empty() ? "unknown" : word; }
Json text_or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }
Json number_or_null(std::uint64_t value) { return value == kUnlimited ? Json() : Json(value); }

void add_caches(Report& report, const std::vector<Cache>& caches) {
  std::string text;
  Json list = Json::array();
  for (const Cache& cache : caches) {
    text += fmt::format("{}L{} {} x {}", text.empty() ? "" : ", ", cache.level, cache.count,
                        bytes_text(cache.bytes));
    if (cache.shared_by > 1) text += fmt::format(" (each for {} threads)", cache.shared_by);
    list.push_back({{"level", cache.level},
                    {"bytes", cache.bytes},
                    {"count", cache.count},
                    {"shared_by", cache.shared_by}});
  }
  report.line("caches", known(text), {{"caches", list}});
}

void add_processors(Report& report, const Findings& findings) {
  const MachineFacts& machine = findings.machine;
  report.section("processors", "/machine");
  report.line("name", known(machine.processor), {{"processor", machine.processor}});
  report.line("usable",
              fmt::format("{} of {} hardware threads (cpus {})", machine.cpus.size(),
                          machine.num_threads, ranges_text(machine.cpus)),
              {{"cpus", machine.cpus}, {"hardware_threads", machine.num_threads}});
  report.line("layout",
              fmt::format("{}, {}, {}", count_text(machine.num_sockets, "socket"),
                          count_text(machine.num_numa, "NUMA domain"),
                          count_text(machine.num_cores, "core")),
              {{"sockets", machine.num_sockets},
               {"numa_domains", machine.num_numa},
               {"cores", machine.num_cores}});
  add_caches(report, machine.caches);
  const bool limited = machine.cpu_limit > 0;
  report.line("time limit", limited ? fmt::format("{:.3g} processors", machine.cpu_limit) : "none",
              {{"cpu_limit", limited ? Json(machine.cpu_limit) : Json()}});
  report.line("SIMD", findings.simd.empty()
                          ? "none"
                          : fmt::format("{} in use; available {}", findings.simd.front(),
                                        fmt::join(findings.simd, ", ")));
}

void add_memory(Report& report, const MachineFacts& machine) {
  report.section("memory", "/machine");
  report.line("available",
              fmt::format("{} of {}", bytes_text(machine.memory_available),
                          bytes_text(machine.memory_bytes)),
              {{"memory_bytes", machine.memory_bytes},
               {"memory_available_bytes", machine.memory_available}});
  const std::uint64_t files = machine.limit_open_files;
  report.line("limits",
              fmt::format("address space {}, file size {}, locked {}, open files {}",
                          bytes_text(machine.limit_address_space),
                          bytes_text(machine.limit_file_size), bytes_text(machine.limit_locked),
                          files == kUnlimited ? "unlimited" : std::to_string(files)),
              {{"limits",
                {{"address_space_bytes", number_or_null(machine.limit_address_space)},
                 {"file_size_bytes", number_or_null(machine.limit_file_size)},
                 {"locked_bytes", number_or_null(machine.limit_locked)},
                 {"open_files", number_or_null(files)}}}});
  report.line("huge pages",
              fmt::format("private {}, shared {}", known(machine.thp), known(machine.shmem_thp)),
              {{"huge_pages", {{"private", machine.thp}, {"shared", machine.shmem_thp}}}});
}

void add_kernel(Report& report, const Findings& findings) {
  report.section("kernel", "/machine");
  const std::string& release = findings.machine.kernel;
  report.line("release", known(release), {{"kernel", release}});
  Json list = Json::array();
  for (const Trial& trial : findings.trials) {
    const char* const verdict = trial.ok ? "ok" : trial.needed ? "FAILED" : "no";
    report.line(trial.name, fmt::format("{}: {}", verdict, trial.detail));
    list.push_back({{"name", trial.name},
                    {"needed", trial.needed},
                    {"ok", trial.ok},
                    {"detail", trial.detail}});
  }
  report.section("on a host", "");
  report.line("shared memory", problems(findings).empty() ? "yes" : "no", {{"trials", list}});
}

void add_network(Report& report, const Network& network) {
  report.section("between hosts", "/network");
  report.line("UCX",
              network.ucx.empty()
                  ? "not found (ranks of one host do not need it)"
                  : fmt::format("{} found (ranks of one host do not use it)", network.ucx),
              {{"ucx", text_or_null(network.ucx)}});
  report.line("link", network.no_link.empty() ? network.link : "none: " + network.no_link,
              {{"link", text_or_null(network.link)}, {"no_link", text_or_null(network.no_link)}});
  Json list = Json::array();
  for (const NetworkInterface& interface : network.interfaces) {
    report.line(interface.name,
                fmt::format("{}{}", interface.address, interface.up ? "" : ", down"));
    list.push_back(
        {{"name", interface.name}, {"address", interface.address}, {"up", interface.up}});
  }
  report.add("", {{"interfaces", list}});
}

void add_speed(Report& report, const std::optional<Speed>& speed) {
  if (!speed) return;  // the JSON then has null
  report.section("speed, measured now", "/speed");
  report.line(
      "first touch",
      fmt::format("{:.2f} us for 4 KiB of shared memory, {:.2f} us committed as windows are",
                  speed->touch_ns / 1e3, speed->commit_ns / 1e3),
      {{"first_touch_ns", speed->touch_ns}, {"first_touch_window_ns", speed->commit_ns}});
  report.line("flag",
              fmt::format("{:.3f} us from one {} to another", speed->flag_ns / 1e3,
                          speed->flag_on_two_cpus ? "processor" : "thread of this processor"),
              {{"flag_ns", speed->flag_ns}, {"flag_on_two_cpus", speed->flag_on_two_cpus}});
  report.line("copy",
              fmt::format("{:.1f} GB/s of payload, one thread, beyond the caches",
                          speed->copy_bytes_per_s / 1e9),
              {{"copy_bytes_per_s", speed->copy_bytes_per_s}});
}

void add_launcher(Report& report, const Findings& findings) {
  report.section("launcher", "/launcher");
  if (!findings.launch) {
    return report.line("found", "none: " + findings.no_launch,
                       {{"found", nullptr}, {"reason", findings.no_launch}});
  }
  const internal::Launch& launch = *findings.launch;
  report.line("found",
              fmt::format("{}, rank {} of {}: {}", launch.launcher, launch.rank, launch.size,
                          launch.reason),
              {{"found", launch.launcher},
               {"reason", launch.reason},
               {"rank", launch.rank},
               {"size", launch.size}});
}

void add_advice(Report& report, const char* field, const std::vector<Advice>& advices) {
  Json list = Json::array();
  for (const Advice& advice : advices) {
    report.add(fmt::format("  - {}\n    {}\n    remedy: {}\n", advice.finding, advice.consequence,
                           advice.remedy));
    list.push_back({{"finding", advice.finding},
                    {"consequence", advice.consequence},
                    {"remedy", advice.remedy}});
  }
  report.add("", {{field, list}});
}

}  // namespace

Report doctor_report(const Findings& findings) {
  const std::vector<Advice> broken = problems(findings), slow = advise(findings);
  Report report;
  report.add("ferry " FERRY_VERSION "\n", {{"version", FERRY_VERSION},
                                           {"ok", broken.empty()},
                                           {"simd", findings.simd},
                                           {"speed", nullptr}});
  add_processors(report, findings);
  add_memory(report, findings.machine);
  add_kernel(report, findings);
  add_network(report, findings.network);
  add_speed(report, findings.speed);
  add_launcher(report, findings);
  report.section(broken.empty() ? "" : "ferry cannot work here", "");
  add_advice(report, "problems", broken);
  report.section("what to change for speed", "");
  if (slow.empty()) report.add("  nothing\n");
  add_advice(report, "advice", slow);
  if (broken.empty()) report.add("\nferry can work here.\n");
  return report;
}

}  // namespace ferry::tools
