// LineReader: reads a line of a machine's text word by word. Error messages name the line's number.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ferry::internal {

using WordList = std::vector<std::string_view>;

WordList split(std::string_view text, std::string_view separators);

class LineReader {
 public:
  LineReader(WordList words, int number) : words_(std::move(words)), number_(number) {}

  [[noreturn]] void refuse(const std::string& what) const;

  int number() const { return number_; }
  std::size_t read() const { return next_; }  // the number of words that were read
  bool done() const { return next_ == words_.size(); }
  std::string_view word(const char* what);
  bool take(std::string_view word);
  std::string rest();

  int integer(std::string_view text) const;
  // Reads a number with a unit: 12.5 for "12.5GB/s" with unit "GB/s". nullopt if the text has
  // another unit.
  std::optional<double> quantity(std::string_view text, std::string_view unit) const;
  double required(std::string_view text, std::string_view unit) const;
  // Reads a rate with the unit GB/s or Gbit/s. Returns it in GB/s, or nullopt if the text has
  // another unit.
  std::optional<double> rate(std::string_view text) const;
  double required_rate(std::string_view text) const;
  // Reads the rest of the line, which is the source of the values before it. Refuses a rate or a
  // time in it if the line had none before.
  std::string source(bool has_rate, bool has_time);
  // Sets a field. Throws if it was set before.
  void set(double& field, double value, std::string_view unit) const;

 private:
  WordList words_;
  std::size_t next_ = 0;
  int number_;
};

}  // namespace ferry::internal
