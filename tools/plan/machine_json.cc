// Reads the JSON form of machines; see machine_json.h.
#include "tools/plan/machine_json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "base/names.h"
#include "ferry/status.h"
#include "plan/machine_text.h"
#include "tools/json_limits.h"
#include "tools/refuse.h"

namespace ferry::tools {

namespace {

using nlohmann::json;

// An iterator over a text that counts the characters that the parser has read. *read points behind
// the last one.
struct ReadCharacter {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at;
  const char** read;

  reference operator*() const { return *at; }
  ReadCharacter& operator++() {
    *read = ++at;
    return *this;
  }
  bool operator==(const ReadCharacter& other) const { return at == other.at; }
  bool operator!=(const ReadCharacter& other) const { return at != other.at; }
};

// The fields of a JSON text. An error about a field names the line of the text.
class JsonFields {
 public:
  explicit JsonFields(const std::string& text) : text_(text), all_(parse(text)) {}

  const json& all() const { return all_; }

  // The line at which the object has the key. With an empty key it is the line at which the object
  // begins.
  int line_of(const json& object, const std::string& key) const {
    if (!object.contains(kAt)) return 1;
    const std::size_t begin = object.at(kAt).get<std::size_t>();
    const std::size_t at = text_.find(fmt::format("\"{}\"", key), begin);
    const std::size_t end = key.empty() || at == text_.npos ? begin : at;
    return 1 + static_cast<int>(std::ranges::count(std::string_view(text_).substr(0, end), '\n'));
  }

  [[noreturn]] void refuse(const json& object, const std::string& key,
                           const std::string& what) const {
    internal::refuse_line(line_of(object, key), what);
  }

  void check_keys(const json& object, const std::vector<std::string>& known) const {
    if (!object.is_object())
      throw std::invalid_argument("JSON machine: " + object.dump() + " is no object");
    for (const auto& [key, value] : object.items()) {
      if (key != kAt && std::ranges::count(known, key) == 0)
        refuse(object, key,
               fmt::format("unknown key '{}'{}", key, internal::nearest_name(key, known)));
    }
  }

  json list(const json& object, const char* key) const {
    json list = object.value(key, json::array());
    if (!list.is_array()) refuse(object, key, fmt::format("'{}' is no list", key));
    return list;
  }

  std::string string(const json& object, const char* key) const {
    if (!object.contains(key)) refuse(object, "", fmt::format("'{}' is missing", key));
    if (!object.at(key).is_string())
      refuse(object, key, fmt::format("'{}' is {}, not a text", key, object.at(key).dump()));
    return object.at(key).get<std::string>();
  }

  std::string positive(const json& object, const char* key) const {
    const json& value = object.at(key);
    if (!value.is_number() || value.get<double>() <= 0)
      refuse(object, key, fmt::format("'{}' is {}, not a positive number", key, value.dump()));
    return value.dump();
  }

  std::string optional(const json& object, const char* key, const char* before,
                       const char* unit) const {
    return object.contains(key) ? fmt::format(" {}{}{}", before, positive(object, key), unit) : "";
  }

  // Reads a rate, which may be given in GB/s or in Gbit/s, but not in both.
  std::string rate(const json& object, const std::string& key, const char* before = "") const {
    const std::string gb_s = key + "gb_s", gbit_s = key + "gbit_s";
    if (object.contains(gb_s) && object.contains(gbit_s))
      refuse(object, gbit_s, fmt::format("'{}' and '{}' are one rate", gb_s, gbit_s));
    return optional(object, gb_s.c_str(), before, "GB/s") +
           optional(object, gbit_s.c_str(), before, "Gbit/s");
  }

  std::string numbers(const json& object, const char* key, const char* unit) const {
    std::string text;
    for (const json& value : list(object, key)) text += fmt::format(" {}{}", value.dump(), unit);
    return text;
  }

  bool flag(const json& object, const char* key) const {
    const json value = object.value(key, json(false));
    if (!value.is_boolean())
      refuse(object, key, fmt::format("'{}' is {}, not true or false", key, value.dump()));
    return value.get<bool>();
  }

  std::string pairs(const json& object, const char* key, const char* between) const {
    std::string text;
    for (const json& pair : list(object, key)) {
      if (!pair.is_array() || pair.size() != 2)
        refuse(object, key,
               fmt::format("{} in '{}' is not a list of two numbers", pair.dump(), key));
      text += fmt::format("{}{}{}{}", text.empty() ? "" : ",", pair.at(0).dump(), between,
                          pair.at(1).dump());
    }
    return text;
  }

  std::string source(const json& object) const {
    return object.contains("source") ? " source " + string(object, "source") : "";
  }

 private:
  // Parses the text. Each object gets the key kAt with the offset in the text at which it begins.
  static json parse(const std::string& text) {
    check_json("JSON machine: the text", text);
    const char* read = text.data();
    std::vector<std::ptrdiff_t> begins;
    const auto note = [&](int /*depth*/, json::parse_event_t event, json& parsed) {
      if (event == json::parse_event_t::object_start) begins.push_back(read - text.data());
      if (event == json::parse_event_t::object_end) {
        parsed[kAt] = begins.back();
        begins.pop_back();
      }
      return true;
    };
    const ReadCharacter begin{text.data(), &read}, end{text.data() + text.size(), &read};
    return json::parse(begin, end, note);
  }

  static constexpr const char* kAt = "@at";

  const std::string& text_;
  const json all_;
};

// Reads the machine that the fields describe.
class MachineReader : JsonFields {
 public:
  using JsonFields::JsonFields;

  // Converts the fields to the text form of a machine and parses that, so that there is only one
  // grammar.
  Machine read() {
    check_keys(all(),
               {"tree", "links", "ports", "engines", "host", "memory_gb", "contention", "name"});
    add(all(), string(all(), "tree"));
    for (const json& link : list(all(), "links")) add(link, link_line(link));
    for (const json& port : list(all(), "ports")) add(port, port_line(port));
    for (const json& engine : list(all(), "engines")) add(engine, engine_line(engine));
    if (all().contains("host")) add(all().at("host"), host_line(all().at("host")));
    for (const auto& [key, word, unit] :
         {std::array{"memory_gb", "memory", "GB"}, std::array{"contention", "contention", ""}})
      if (all().contains(key))
        add(all(), fmt::format("{} {}{}", word, positive(all(), key), unit), key);
    std::vector<internal::MachineLine> lines;
    for (const auto& [number, line] : lines_) lines.push_back({number, line});
    Machine machine = internal::parse_lines(lines);
    if (all().contains("name")) machine.name = string(all(), "name");
    return machine;
  }

 private:
  void add(const json& object, std::string line, const std::string& key = "") {
    lines_.emplace_back(line_of(object, key), std::move(line));
  }

  std::string shape(const json& link) const {
    const auto given = [&](const char* shape) { return link.contains(shape); };
    if (std::ranges::count_if(kShapes, given) != 1)
      refuse(link, "name",
             fmt::format("link '{}' has {} of {}", string(link, "name"),
                         std::ranges::none_of(kShapes, given) ? "none" : "two",
                         fmt::join(kShapes, ", ")));
    const std::string in = link.contains("within") ? " in " + string(link, "within") : "";
    if (given("xor")) return fmt::format(" xor {}{}", link.at("xor").dump(), in);
    if (given("pairs")) return " pairs " + pairs(link, "pairs", "-") + in;
    const char* const shape = *std::ranges::find_if(kShapes, given);
    return fmt::format(" {} {}{}", shape, string(link, shape), in);
  }

  std::string link_line(const json& link) const {
    check_keys(link, {"name", "mesh", "ring", "index", "xor", "pairs", "within", "gb_s", "gbit_s",
                      "latency_us", "issue_us", "port", "curve", "source"});
    std::string line = "link " + string(link, "name") + shape(link) + rate(link, "") +
                       optional(link, "latency_us", "", "us") +
                       optional(link, "issue_us", "issue ", "us");
    if (link.contains("port")) line += " port " + string(link, "port");
    if (link.contains("curve")) line += " curve " + pairs(link, "curve", ":");
    return line + source(link);
  }

  std::string port_line(const json& port) const {
    check_keys(port, {"name", "gb_s", "gbit_s", "level", "duplex", "source"});
    const std::string duplex = port.contains("duplex") ? string(port, "duplex") : "full";
    if (duplex != "full" && duplex != "half")
      refuse(port, "duplex", fmt::format("duplex '{}' is neither full nor half", duplex));
    return "port " + string(port, "name") + rate(port, "") +
           (port.contains("level") ? " of " + string(port, "level") : "") +
           (duplex == "half" ? " half" : "") + source(port);
  }

  std::string engine_line(const json& engine) const {
    check_keys(engine, {"name", "gb_s", "gbit_s", "sends", "relays", "reorders", "source"});
    std::string line = "engine " + string(engine, "name") + rate(engine, "");
    for (const char* use : {"sends", "relays", "reorders"})
      if (flag(engine, use)) line += fmt::format(" {}", use);
    return line + source(engine);
  }

  std::string host_line(const json& host) const {
    check_keys(host, {"dispatch", "combine", "processors", "waiting_us", "caches_mb", "rank_mb",
                      "network_gb_s", "network_gbit_s", "together", "flag_ns", "source"});
    std::string line = "host";
    for (const char* half : {"dispatch", "combine"}) {
      if (!host.contains(half)) continue;
      const json& cost = host.at(half);
      check_keys(cost, {"rank_us", "token_ns", "gb_s"});
      line += fmt::format(" {} {}us {}ns{}", half, positive(cost, "rank_us"),
                          positive(cost, "token_ns"), numbers(cost, "gb_s", "GB/s"));
    }
    line += optional(host, "processors", "processors ", "");
    if (host.contains("waiting_us")) line += " waiting" + numbers(host, "waiting_us", "us");
    if (host.contains("caches_mb")) line += " caches" + numbers(host, "caches_mb", "MB");
    return line + optional(host, "rank_mb", "rank ", "MB") + rate(host, "network_", "network ") +
           (flag(host, "together") ? " together" : "") + optional(host, "flag_ns", "flag ", "ns") +
           source(host);
  }

  static constexpr std::array kShapes = {"mesh", "ring", "index", "xor", "pairs"};

  // Lines of the text form, each with the line of the JSON from which it was made.
  std::vector<std::pair<int, std::string>> lines_;
};

}  // namespace

std::string read_file(const std::string& name) {
  std::ifstream file(name);
  if (!file || std::filesystem::is_directory(name)) refuse("cannot read '{}'", name);
  std::string text(kMostJsonBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kMostJsonBytes)
    refuse("'{}' has more than {} bytes, the limit", name, kMostJsonBytes);
  const bool marked = text.starts_with(internal::kByteOrderMark);
  return marked ? text.substr(internal::kByteOrderMark.size()) : text;
}

Machine read_machine(const std::string& text) {
  const bool is_json = text.ends_with(".json");
  if (!is_json && !text.ends_with(".txt")) return Machine::parse(text);
  const std::string content = read_file(text);
  try {
    return is_json ? machine_from_json(content) : Machine::parse(content);
  } catch (const Error& error) {
    throw std::invalid_argument(with_file(text, error.what()));
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(with_file(text, error.what()));
  }
}

std::string with_file(const std::string& machine, const std::string& what) {
  if (!machine.ends_with(".json") && !machine.ends_with(".txt")) return what;
  constexpr std::string_view kWord = "machine";  // begins errors about a line or the whole text
  const bool named = what.starts_with("machine, line ") || what.starts_with("machine: ");
  return named ? machine + what.substr(kWord.size()) : fmt::format("{}: {}", machine, what);
}

Machine machine_from_json(const std::string& text) try {
  return MachineReader(text).read();
} catch (const json::exception& error) {
  refuse("JSON machine: {}", reason_of(error));
}

std::string reason_of(const json::exception& error) {
  // Has the form "[json.exception.parse_error.101] parse error at ..".
  const std::string text = error.what();
  return text.substr(text.find("] ") + 2);
}

}  // namespace ferry::tools
