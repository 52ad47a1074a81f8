// Topology::parse: reads levels and presets from a text.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/names.h"
#include "ferry/status.h"
#include "ferry/topology.h"

namespace ferry {

namespace {

using Level = Topology::Level;

// A preset is a number of equal machines, each with the levels `inside`. The presets are widely
// used machines. A user adds the speeds ("gpu8:4@50GB/s").
struct Preset {
  std::string_view name;
  std::string_view outermost;  // the level of the machines
  // The number of machines. 0: the user gives it, and it is 1 if the user does not.
  int count;
  int links;  // the number of links of each machine
  std::string_view inside;
};
constexpr std::array<Preset, 4> kPresets = {{
    {"gpu8", "host", 0, 1, "rank:8"},
    {"rails8x8", "host", 8, 8, "rank:8"},
    {"dies16", "machine", 0, 16, "host:4,rank:4"},
    {"superpod384", "host", 0, 1, "server:24,rank:16"},
}};

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

// Splits a text. An empty text has no parts. (clang 14 does not compile std::views::split.)
std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty() || !parts.empty()) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == text.npos) break;
    text.remove_prefix(end + 1);
  }
  return parts;
}

// Reads the parts of one text. Every error names the text.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(Code::kInvalidArgument, fmt::format("topology '{}': {}", text_, what));
  }

  int integer(std::string_view digits, std::string_view what, int least = 1) const {
    int value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size() || value < least ||
        value > Topology::kMostRanks) {
      refuse(fmt::format("{}: '{}' is not a number from {} to {}", what, digits, least,
                         Topology::kMostRanks));
    }
    return value;
  }

 protected:
  const std::string_view text_;
};

// Reads the properties of a level.
class LinkReader : Reader {
 public:
  LinkReader(std::string_view text, const std::string& level) : Reader(text), level_(level) {}

  // Reads "12.5GB/s", "100Gbit/s", "5us", "8links", "1xor", "pairs0-5+1-4" or "also4xor". Returns
  // the name of the property, in the plural.
  std::string_view set(std::string_view text, Topology::Link& link) const {
    constexpr std::string_view kPairs = "pairs", kMates = "rules for mates", kAlso = "also";
    if (text.starts_with(kAlso)) {
      link.second_way = second_way(text.substr(kAlso.size()));
      return "second ways";
    }
    if (text.starts_with(kPairs)) {
      link.mates = pairs(text.substr(kPairs.size()));
      return kMates;
    }
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const std::string_view unit(end, text.data() + text.size());
    const bool number = error == std::errc() && text[0] >= '0' && text[0] <= '9';
    constexpr std::array<std::string_view, 5> kUnits = {"GB/s", "Gbit/s", "us", "links", "xor"};
    if (!number || std::ranges::count(kUnits, unit) == 0) {
      refuse(
          fmt::format("level '{}': '{}' is not a number with GB/s, Gbit/s, us, links or xor, nor "
                      "pairs, nor also",
                      level_, text));
    }
    if (unit == "xor") {
      link.mates_xor = integer(text.substr(0, text.size() - unit.size()), level_);
      return kMates;
    }
    if (unit == "links") {
      link.count = integer(text.substr(0, text.size() - unit.size()), level_);
      return "numbers of links";
    }
    if (unit == "us") {
      link.latency_us = value;
      return "latencies";
    }
    link.bandwidth_gb_s = unit == "GB/s" ? value : value / 8;
    return kBandwidths;
  }

 private:
  // Reads pairs such as "0-5+1-4".
  std::vector<std::array<int, 2>> pairs(std::string_view text) const {
    std::vector<std::array<int, 2>> pairs;
    for (const std::string_view pair : split(text, '+')) {
      const std::size_t dash = pair.find('-');
      if (dash == pair.npos)
        refuse(fmt::format("level '{}': '{}' is not a pair such as 0-5", level_, pair));
      pairs.push_back(
          {integer(pair.substr(0, dash), level_, 0), integer(pair.substr(dash + 1), level_, 0)});
    }
    if (pairs.empty()) refuse(fmt::format("level '{}' has no pairs of mates", level_));
    return pairs;
  }

  // Reads "4xor" or "4xor12.5GB/s", which follows "also".
  Topology::SecondWay second_way(std::string_view text) const {
    constexpr std::string_view kXor = "xor";
    const std::size_t bits = text.find(kXor);
    if (bits == text.npos)
      refuse(fmt::format("level '{}': 'also{}' is not of the form also4xor or also4xor12.5GB/s",
                         level_, text));
    Topology::Link rate;
    const std::string_view speed = text.substr(bits + kXor.size());
    if (!speed.empty() && (set(speed, rate) != kBandwidths || rate.bandwidth_gb_s <= 0))
      refuse(fmt::format("level '{}': a second way has the rate '{}', need a rate such as 12.5GB/s",
                         level_, speed));
    return {integer(text.substr(0, bits), level_, 0), rate.bandwidth_gb_s};
  }

  static constexpr std::string_view kBandwidths = "bandwidths";
  const std::string& level_;
};

class Parser : Reader {
 public:
  using Reader::Reader;

  std::vector<Level> levels() const {
    const Preset* const preset = find_preset(text_.substr(0, text_.find_first_of(":@,")));
    if (preset) return Parser(expand(*preset)).levels();
    std::vector<Level> levels;
    for (const std::string_view part : split(text_, ',')) {
      levels.push_back(level(part));
      check_name(levels);
    }
    if (std::ssize(levels) > Topology::kMostLevels)
      refuse(fmt::format("{} levels, at most {}", levels.size(), Topology::kMostLevels));
    if (levels.empty() || levels.back().name != Topology::kRank)
      refuse("the last level must be 'rank', such as rank:8" + or_a_preset());
    return levels;
  }

 private:
  // For a text of one word, suggests the preset that the user may have meant.
  std::string or_a_preset() const {
    if (text_.find(',') != text_.npos) return {};
    return ", or name a preset" +
           internal::nearest_name(text_.substr(0, text_.find_first_of(":@")), preset_names());
  }

  static const Preset* find_preset(std::string_view name) {
    const auto found = std::ranges::find(kPresets, name, &Preset::name);
    return found == kPresets.end() ? nullptr : &*found;
  }

  // Replaces a preset by its levels: "gpu8:2@50GB/s" becomes "host:2@50GB/s,rank:8".
  std::string expand(const Preset& preset) const {
    const std::string_view rest = text_.substr(preset.name.size());
    const std::size_t at = std::min(rest.find('@'), rest.size());
    const std::string_view count = rest.substr(0, at), properties = rest.substr(at);
    if (rest.find(',') != rest.npos)
      refuse(fmt::format("'{}' is a preset and stands alone", preset.name));
    if (!count.empty() && preset.count > 0)
      refuse(fmt::format("preset '{}' has {} {}s and takes no number", preset.name, preset.count,
                         preset.outermost));
    const int by_default = preset.count > 0 ? preset.count : 1;
    const int given = count.empty() ? by_default : integer(count.substr(1), preset.outermost);
    const bool has_links = preset.links == 1 || properties.find("links") != properties.npos;
    const std::string links = has_links ? "" : fmt::format("@{}links", preset.links);
    return fmt::format("{}:{}{}{},{}", preset.outermost, given, links, properties, preset.inside);
  }

  Level level(std::string_view part) const {
    const std::size_t colon = part.find(':');
    if (part.empty() || colon == part.npos)
      refuse(fmt::format("'{}' is not of the form name:count{}", part, or_a_preset()));
    Level level{.name = std::string(part.substr(0, colon)), .fanout = {}, .first = {}};
    std::string_view rest = part.substr(colon + 1);
    const std::string_view fanout = rest.substr(0, rest.find('@'));
    for (const std::string_view count : split(fanout, '+'))
      level.fanout.push_back(integer(count, level.name));
    if (level.fanout.empty()) refuse(fmt::format("level '{}' has no count", level.name));
    std::vector<std::string_view> seen;
    while (rest.find('@') != rest.npos) {
      rest.remove_prefix(rest.find('@') + 1);
      seen.push_back(LinkReader(text_, level.name).set(rest.substr(0, rest.find('@')), level.link));
      if (std::ranges::count(seen, seen.back()) > 1)
        refuse(fmt::format("level '{}' has two {}", level.name, seen.back()));
    }
    return level;
  }

  // Checks that the name of the last level is new and well formed, and that no level is inside
  // 'rank'.
  void check_name(const std::vector<Level>& levels) const {
    const std::string& name = levels.back().name;
    const bool letters = !name.empty() && std::ranges::all_of(name, [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
    });
    if (!letters || (name[0] >= '0' && name[0] <= '9'))
      refuse(fmt::format("'{}' is not a name of a level: a-z, 0-9, _, a letter first", name));
    if (find_preset(name)) refuse(fmt::format("'{}' is a preset and stands alone", name));
    if (std::ranges::count(levels, name, &Level::name) > 1)
      refuse(fmt::format("two levels are named '{}'", name));
    if (levels.size() > 1 && levels[levels.size() - 2].name == Topology::kRank)
      refuse(fmt::format("level '{}' is inside 'rank', which is the innermost", name));
  }
};

}  // namespace

Topology Topology::parse(std::string_view text) { return Topology(Parser(text).levels()); }

}  // namespace ferry
