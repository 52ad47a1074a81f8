// Report: the output of a command. A line is given once, as text for people and as fields for
// programs. The report is then written as text or as one JSON object.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace ferry::tools {

class Report {
 public:
  using Json = nlohmann::ordered_json;

  // Begins a section with a title, which may be empty. `object` is the JSON pointer of the object
  // that gets the following fields.
  void section(const char* title, const std::string& object);
  // Adds "  label  value". A long value continues on the next lines.
  void line(const std::string& label, const std::string& value,
            const Json& fields = Json::object());
  // Adds a text without a label. It may be empty.
  void add(const std::string& text, const Json& fields = Json::object());

  std::string render(bool as_json) const { return as_json ? json_.dump(2) + "\n" : text_; }

 private:
  std::string text_;
  Json json_ = Json::object();
  Json::json_pointer object_;
};

}  // namespace ferry::tools
