// Writes a report as text or as JSON; see report.h.
#include "tools/report.h"

#include <fmt/format.h>

#include "tools/text.h"

namespace ferry::tools {

void Report::section(const char* title, const std::string& object) {
  if (*title) text_ += fmt::format("\n{}\n", title);
  object_ = Json::json_pointer(object);
}

void Report::line(const std::string& label, const std::string& value, const Json& fields) {
  constexpr std::size_t kColumns = 80;
  std::string shown = label;
  for (const std::string& part : wrapped(value, kColumns)) {
    text_ += fmt::format("  {:<16} {}\n", shown, part);
    shown.clear();
  }
  add("", fields);
}

void Report::add(const std::string& text, const Json& fields) {
  text_ += text;
  if (!fields.empty()) json_[object_].update(fields);
}

}  // namespace ferry::tools
