// Makes, reads and compares hellos.
#include "bootstrap/hello.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>

namespace ferry::internal {
namespace {

// The version of the frames in connection.h and of their payloads.
constexpr int kProtocol = 5;

// The names of the fields in a hello's text.
constexpr std::pair<const char*, int Hello::*> kNumbers[] = {{"protocol", &Hello::protocol},
                                                             {"rank", &Hello::rank},
                                                             {"size", &Hello::size},
                                                             {"pid", &Hello::pid}};
constexpr std::pair<const char*, std::string Hello::*> kTexts[] = {
    {"version", &Hello::version},
    {"build", &Hello::build},
    {"address", &Hello::address},
    {"nodes", &Hello::nodes},
    {"members", &Hello::members},
    {"boot_id", &Hello::boot_id},
    {"pid_namespace", &Hello::pid_namespace},
    {"net_namespace", &Hello::net_namespace},
    {"user_namespace", &Hello::user_namespace},
    {"host", &Hello::host}};

std::string link_target(const char* path) {
  char target[128];
  const ssize_t bytes = readlink(path, target, sizeof(target));
  return bytes > 0 ? std::string(target, static_cast<std::size_t>(bytes)) : "unknown";
}

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  return std::getline(file, line) ? line : "unknown";
}

// Writes runs of ranks of one node, as in "0*4,1*4".
std::string runs_of(const std::vector<int>& nodes) {
  std::vector<std::string> runs;
  for (std::size_t first = 0, next = 0; first < nodes.size(); first = next) {
    while (next < nodes.size() && nodes[next] == nodes[first]) ++next;
    runs.push_back(fmt::format("{}*{}", nodes[first], next - first));
  }
  return fmt::format("{}", fmt::join(runs, ","));
}

// Escapes newlines and backslashes, which addresses may contain.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '\n' ? "\\n" : c == '\\' ? "\\\\" : std::string(1, c);
  return out;
}

std::string unescaped(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool pair = text[i] == '\\' && i + 1 < text.size();
    if (pair) ++i;
    out += pair && text[i] == 'n' ? '\n' : text[i];
  }
  return out;
}

std::string at_rank(const Hello& hello, const std::string& value) {
  return fmt::format("rank {} (pid {}, host {}) has {}", hello.rank, hello.pid, hello.host, value);
}

struct Field {
  const char* name;
  std::string a, b;
};

std::string first_difference(const Hello& a, const Hello& b, std::initializer_list<Field> fields) {
  for (const Field& field : fields) {
    if (field.a == field.b) continue;
    return fmt::format("{}: {}, {}", field.name, at_rank(a, field.a), at_rank(b, field.b));
  }
  return "";
}

}  // namespace

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

std::string identity(const Hello& hello) {
  return fmt::format("{} {} {} {}", hello.boot_id, hello.pid_namespace, hello.net_namespace,
                     hello.user_namespace);
}

std::string net_namespace() { return link_target("/proc/self/ns/net"); }

std::string boot_id() { return first_line("/proc/sys/kernel/random/boot_id"); }

Hello own_hello(const std::string& address, int rank, const std::vector<int>& nodes) {
  return {.protocol = kProtocol,
          .version = FERRY_VERSION,
          .build = FERRY_BUILD_ID,
          .address = address,
          .rank = rank,
          .size = static_cast<int>(nodes.size()),
          .nodes = runs_of(nodes),
          .members = "all",
          .pid = getpid(),
          .boot_id = boot_id(),
          .pid_namespace = link_target("/proc/self/ns/pid"),
          .net_namespace = net_namespace(),
          .user_namespace = link_target("/proc/self/ns/user"),
          .host = host_name()};
}

std::string encode(const Hello& hello) {
  std::string text;
  for (const auto& [key, member] : kNumbers) text += fmt::format("{}={}\n", key, hello.*member);
  for (const auto& [key, member] : kTexts)
    text += fmt::format("{}={}\n", key, escaped(hello.*member));
  return text;
}

std::optional<Hello> decode_hello(const std::string& text) {
  std::map<std::string, std::string> values;
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    const auto equals = line.find('=');
    if (equals != std::string::npos) values[line.substr(0, equals)] = line.substr(equals + 1);
  }
  for (const char* key : {"version", "rank", "size"}) {
    if (!values.contains(key)) return std::nullopt;
  }
  Hello hello;
  for (const auto& [key, member] : kNumbers) {
    const std::string& value = values[key];
    const char* end = value.data() + value.size();
    const auto [stop, error] = std::from_chars(value.data(), end, hello.*member);
    if (!value.empty() && (error != std::errc() || stop != end)) return std::nullopt;
  }
  for (const auto& [key, member] : kTexts) hello.*member = unescaped(values[key]);
  return hello;
}

std::string disagreement(const Hello& a, const Hello& b) {
  return first_difference(
      a, b,
      {{"different versions of ferry", a.version, b.version},
       {"different protocols of ferry", std::to_string(a.protocol), std::to_string(b.protocol)},
       {"different builds of ferry", a.build, b.build},
       {"different group sizes", std::to_string(a.size), std::to_string(b.size)},
       {"different topologies (nodes of the ranks)", a.nodes, b.nodes},
       {"different ranks that the group begins with", a.members, b.members}});
}

std::string disagreement_on_host(const Hello& a, const Hello& b) {
  if (a.boot_id != b.boot_id) {
    return fmt::format(
        "rank {} is on host {} (boot id {}), rank {} on host {} (boot id {}): a group that spans "
        "hosts needs an address tcp://host:port",
        a.rank, a.host, a.boot_id, b.rank, b.host, b.boot_id);
  }
  std::string programs = disagreement(a, b);
  if (!programs.empty()) return programs;
  return first_difference(
      a, b,
      {{"different addresses", '"' + a.address + '"', '"' + b.address + '"'},
       {"different pid namespaces (containers?); ranks share theirs or meet at tcp://host:port",
        a.pid_namespace, b.pid_namespace},
       {"different network namespaces; ranks share theirs or meet at tcp://host:port",
        a.net_namespace, b.net_namespace},
       {"different user namespaces; ranks share theirs or meet at tcp://host:port",
        a.user_namespace, b.user_namespace}});
}

}  // namespace ferry::internal
