#include "plan/line_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/names.h"

namespace ferry::internal {

WordList split(std::string_view text, std::string_view separators) {
  WordList words;
  while (!text.empty()) {
    const std::size_t begin = std::min(text.find_first_not_of(separators), text.size());
    const std::size_t end = std::min(text.find_first_of(separators, begin), text.size());
    if (end > begin) words.push_back(text.substr(begin, end - begin));
    text.remove_prefix(end);
  }
  return words;
}

void LineReader::refuse(const std::string& what) const { refuse_line(number_, what); }

std::string_view LineReader::word(const char* what) {
  if (done()) refuse(fmt::format("{} is missing", what));
  return words_[next_++];
}

bool LineReader::take(std::string_view word) {
  if (done() || words_[next_] != word) return false;
  ++next_;
  return true;
}

std::string LineReader::rest() {
  std::string text;
  while (!done()) text += (text.empty() ? "" : " ") + std::string(words_[next_++]);
  return text;
}

int LineReader::integer(std::string_view text) const {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0)
    refuse(fmt::format("'{}' is not a number, 0 or more", text));
  return value;
}

std::optional<double> LineReader::quantity(std::string_view text, std::string_view unit) const {
  if (!text.ends_with(unit)) return std::nullopt;
  const std::string_view digits = text.substr(0, text.size() - unit.size());
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  if (!(value > 0) || value > 1e15)
    refuse(unit.empty() ? fmt::format("'{}' is not a positive number", text)
                        : fmt::format("'{}' is not a positive quantity of {}", text, unit));
  return value;
}

double LineReader::required(std::string_view text, std::string_view unit) const {
  const std::optional<double> value = quantity(text, unit);
  if (!value) refuse(fmt::format("'{}' is not a number with {}", text, unit));
  return *value;
}

std::optional<double> LineReader::rate(std::string_view text) const {
  if (const auto gbit = quantity(text, "Gbit/s")) return *gbit / 8;
  return quantity(text, "GB/s");
}

double LineReader::required_rate(std::string_view text) const {
  const std::optional<double> value = rate(text);
  if (!value) refuse(fmt::format("'{}' is not a number with GB/s or Gbit/s", text));
  return *value;
}

std::string LineReader::source(bool has_rate, bool has_time) {
  for (std::size_t i = next_; i < words_.size(); ++i) {
    if ((!has_rate && rate(words_[i])) || (!has_time && quantity(words_[i], "us")))
      refuse(
          fmt::format("'{}' is part of the text of 'source', which is the rest of the line; "
                      "write it before 'source'",
                      words_[i]));
  }
  return rest();
}

void LineReader::set(double& field, double value, std::string_view unit) const {
  if (field != 0)
    refuse(fmt::format("{}{} after {}{}: only one value is allowed", value, unit, field, unit));
  field = value;
}

}  // namespace ferry::internal
