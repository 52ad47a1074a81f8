// The environment of a rank, as lines NAME=value: launchers' variables and ferry's.
#include <cstdint>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>

#include "base/environment.h"
#include "bootstrap/launcher.h"
#include "bootstrap/tcp.h"
#include "ferry/status.h"

namespace {

using namespace ferry::internal;

template <typename Read>
void accept_refusal(const Read& read) {
  try {
    read();
  } catch (const ferry::Error& error) {
    if (error.code() != ferry::Code::kInvalidArgument) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  std::map<std::string, std::string> variables;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto equals = line.find('=');
    if (equals != std::string::npos) variables[line.substr(0, equals)] = line.substr(equals + 1);
  }
  const auto get = [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end() || found->second.empty()) return std::nullopt;
    return found->second;
  };
  accept_refusal([&] {
    const Launch launch = launch_from_environment(get, 1);
    if (launch.rank < 0 || launch.rank >= launch.size) std::abort();
  });
  accept_refusal([&] { parse_tcp(parse_tcp(text).text()); });
  accept_refusal([&] { whole_number("NUMBER", text, 0, 9); });
  first_host(text);
  return 0;
}
