// Report: the output of a command. Each line is given once, as text for people and as fields for
// programs; the report is then written as text or as one JSON object. Filled by
// doctor/report.cc, doctor/link.cc and topology/report.cc.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace ferry::tools {

class Report {
 public:
  using Json = nlohmann::ordered_json;

  // A title, which may be empty; `object` is the JSON pointer of the object that takes the fields
  // from here on.
  void section(const char* title, const std::string& object);
  // "  label   value"; a long value goes on in the lines below.
  void line(const std::string& label, const std::string& value,
            const Json& fields = Json::object());
  // Text that is no line with a label, and may be empty.
  void add(const std::string& text, const Json& fields = Json::object());

  std::string render(bool as_json) const { return as_json ? json_.dump(2) + "\n" : text_; }

 private:
  std::string text_;
  Json json_ = Json::object();
  Json::json_pointer object_;
};

}  // namespace ferry::tools
