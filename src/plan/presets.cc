#include "plan/presets.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <vector>

#include "base/names.h"
#include "ferry/plan.h"
#include "ferry/status.h"

namespace ferry {

namespace {

struct Option {
  std::string_view name, lines;
};

struct MachinePreset {
  std::string_view name, what;
  int most;               // the most groups of the outermost level
  std::string_view text;  // the text of the machine, in which {} is the number of these groups
  Option option = {};
};

// The rates and the wiring are from public descriptions, or fitted to published times
// (docs/plan.md). A rate that no description gives is absent, and limits nothing.
constexpr std::array<MachinePreset, 5> kPresets = {{
    {.name = "ubbv2",
     .what = "N nodes of eight cards in two virtual nodes of four; no switch inside",
     .most = 64,
     .text = "machine:{},vnode:2,rank:4\n"
             "link peer mesh vnode 50GB/s source stated: design study, pulls over BLink\n"
             "link mate1 pairs 0-5,1-4,2-7,3-6 in machine 50GB/s source stated: design study\n"
             "link ib index machine port nic source stated: design study, RoCE\n"
             "port nic 13GB/s source stated: design study, RoCE; one a card\n",
     .option = {"port10", "link port10 xor 12 25GB/s source stated: design study\n"}},
    {.name = "ubbv2dies",
     .what = "the same by dies: two ranks a card, which share its NIC",
     .most = 64,
     .text = "machine:{},vnode:2,card:4,rank:2\n"
             "link d2d mesh card source stated: no rate is published\n"
             "link peer index card 20GB/s source stated: design study\n"
             "link mate1 xor 10 in machine 20GB/s source stated: design study\n"
             "link ib index machine port nic source stated: design study\n"
             "port nic 13GB/s of card source stated: design study\n"},
    {.name = "a2",
     .what = "N servers of eight, meshed inside, rails by index",
     .most = 8192,
     .text = "host:{},rank:8\n"
             "link hccs mesh host 28GB/s source stated: vendor's tables\n"
             "link rdma index host port nic source fitted: two published times\n"
             "port nic 20GB/s source fitted: two published times\n"},
    {.name = "a3",
     .what = "N servers of sixteen dies in one memory domain",
     .most = 24,
     .text = "server:{},rank:16\n"
             "link ub mesh all port fabric source stated: no rate is published here\n"
             "port fabric source stated: no rate is published here; @fabric=..GB/s gives one\n"},
    {.name = "h800",
     .what = "N nodes of eight GPUs on a switch, a NIC each, rails by index",
     .most = 8192,
     .text = "host:{},rank:8\n"
             "link nvlink mesh host port nvswitch source fitted: the rate is that of the port\n"
             "port nvswitch 130GB/s source fitted: DeepEP V1's table for H800; stated are 160\n"
             "link ib index host port nic source fitted: the rate is that of the port\n"
             "port nic 44.5GB/s source fitted: DeepEP V1's table for H800; stated are 50\n"},
}};

[[noreturn]] void refuse(std::string_view text, const std::string& what) {
  throw Error(Code::kInvalidArgument, fmt::format("machine '{}': {}", text, what));
}

// Sets the rate in the line of a link or port: "ib=15GB/s" changes the line of 'ib'.
void set_rate(std::string_view all, std::string_view name, std::string_view rate,
              std::string& text) {
  if (rate.empty())
    refuse(all, fmt::format("'{}=' has no rate; an example is {}=15GB/s", name, name));
  const auto begins = [&](const char* what) {
    return text.find(fmt::format("\n{} {} ", what, name));
  };
  const std::size_t line = std::min(begins("link"), begins("port"));
  if (line == std::string::npos) {
    std::vector<std::string> names;
    for (const Machine::Link& link : Machine::parse(text).links) names.push_back(link.name);
    for (const Machine::Port& port : Machine::parse(text).ports) names.push_back(port.name);
    refuse(all,
           fmt::format("it has no link or port '{}'{}", name, internal::nearest_name(name, names)));
  }
  const std::size_t source = text.find(" source ", line + 1), end = text.find('\n', line + 1);
  std::string kept;
  for (std::size_t word = line + 1; word < source;
       word = std::min(text.find(' ', word), source) + 1) {
    const std::string one = text.substr(word, std::min(text.find(' ', word), source) - word);
    const bool is_rate = one.ends_with("GB/s") || one.ends_with("Gbit/s");
    if (!is_rate) kept += (kept.empty() ? "" : " ") + one;
  }
  text.replace(line + 1, end - line - 1,
               fmt::format("{} {} source stated: by the user", kept, rate));
}

}  // namespace

std::vector<std::string> machine_presets() {
  std::vector<std::string> names;
  for (const MachinePreset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

namespace internal {

std::optional<std::string> preset_text(std::string_view text) {
  const std::string_view name = text.substr(0, text.find_first_of(":@ \r"));
  const auto* const preset = std::ranges::find(kPresets, name, &MachinePreset::name);
  if (preset == kPresets.end()) return std::nullopt;
  std::string_view rest = text.substr(name.size());
  const std::string_view digits =
      rest.starts_with(':') ? rest.substr(1, rest.find('@') - 1) : std::string_view("1");
  int number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size() || number < 1 ||
      number > preset->most)
    refuse(text, fmt::format("'{}' is not a number from 1 to {}", digits, preset->most));
  std::string lines = fmt::format(fmt::runtime(preset->text), number);
  while (rest.find('@') != rest.npos) {
    rest.remove_prefix(rest.find('@') + 1);
    const std::string_view part = rest.substr(0, rest.find('@'));
    const std::size_t equals = part.find('=');
    if (!preset->option.name.empty() && part == preset->option.name)
      lines += preset->option.lines;
    else if (equals != part.npos)
      set_rate(text, part.substr(0, equals), part.substr(equals + 1), lines);
    else
      refuse(text, fmt::format("'{}' is neither a rate, such as nic=15GB/s{}", part,
                               preset->option.name.empty()
                                   ? ", nor an option"
                                   : fmt::format(", nor option '{}'", preset->option.name)));
  }
  return lines;
}

}  // namespace internal

}  // namespace ferry
