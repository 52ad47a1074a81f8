// Fills page.html, which CMake puts into page_text.h; see page.h.
#include "tools/page.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <stdlib.h>

#include <ctime>
#include <fstream>
#include <stdexcept>

#include "page_text.h"
#include "tools/machine.h"

namespace ferry::tools {

void write_page(const std::string& file, const nlohmann::ordered_json& data) {
  constexpr std::string_view kPlace = ">null<";
  const std::string_view page = kPageText;
  const std::size_t at = page.find(kPlace) + 1;
  std::ofstream stream(file);
  stream << page.substr(0, at);
  // No text of the data may end the HTML element that contains it.
  for (const char letter : data.dump()) {
    if (letter == '<')
      stream << "\\u003c";
    else
      stream << letter;
  }
  stream << page.substr(at + kPlace.size() - 2);
  stream.close();
  if (!stream) throw std::runtime_error(fmt::format("--report: cannot write '{}'", file));
}

std::string when_and_where() {
  const MachineFacts machine = this_machine();
  double load = 0;
  const bool known = getloadavg(&load, 1) == 1;
  return fmt::format("{:%Y-%m-%d %H:%M}, {} of {}{}", fmt::localtime(std::time(nullptr)),
                     count_text(machine.num_cores, "core"), machine.processor,
                     known ? fmt::format(", load {:.1f}", load) : "");
}

}  // namespace ferry::tools
