// Formula: the arithmetic of tests/data/plan_cases.json: + - * / ^, parentheses, names, and the
// functions of its notation. Throws std::invalid_argument.
#pragma once

#include <cctype>
#include <cmath>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace ferry {

class Formula {
 public:
  using Names = std::map<std::string, double>;

  static double value(const std::string& text, const Names& names) {
    Formula formula(text, names);
    const double result = formula.sum();
    if (formula.peek() != '\0') throw std::invalid_argument("'" + text + "' does not end");
    return result;
  }

 private:
  Formula(const std::string& text, const Names& names) : text_(text), names_(names) {}

  char peek() {
    while (next_ < text_.size() && text_[next_] == ' ') ++next_;
    return next_ < text_.size() ? text_[next_] : '\0';
  }
  bool take(char sign) {
    if (peek() != sign) return false;
    ++next_;
    return true;
  }

  double sum() {
    double value = take('-') ? -product() : product();
    while (true) {
      if (take('+')) {
        value += product();
      } else if (take('-')) {
        value -= product();
      } else {
        return value;
      }
    }
  }
  double product() {
    double value = power();
    while (true) {
      if (take('*')) {
        value *= power();
      } else if (take('/')) {
        value /= power();
      } else {
        return value;
      }
    }
  }
  double power() {
    const double base = factor();
    return take('^') ? std::pow(base, power()) : base;
  }

  double factor() {
    if (take('(')) {
      const double value = sum();
      expect(')');
      return value;
    }
    if (std::isdigit(static_cast<unsigned char>(peek())) != 0) {
      std::size_t length = 0;
      const double value = std::stod(text_.substr(next_), &length);
      next_ += length;
      return value;
    }
    std::string name;
    for (char c = peek(); std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
         c = next_ < text_.size() ? text_[next_] : '\0')
      name += c, ++next_;
    if (take('(')) return call(name);
    if (names_.count(name) == 0) throw std::invalid_argument("no '" + name + "' in " + text_);
    return names_.at(name);
  }

  double call(const std::string& name) {
    std::vector<double> given = {sum()};
    while (take(',')) given.push_back(sum());
    expect(')');
    const auto at = [&](std::size_t i, double standard) {
      return i < given.size() ? given[i] : standard;
    };
    if (name == "P") return 1 - missed(given[0], at(1, 256), at(2, 8));
    if (name == "B") return 1 - std::pow(1 - given[0], at(1, 8));
    if (name == "C") return choices(given[0], at(1, 0));
    if (name == "max") return std::max(given[0], at(1, given[0]));
    if (name == "min") return std::min(given[0], at(1, given[0]));
    if (name == "ceil") return std::ceil(given[0]);
    if (name == "floor") return std::floor(given[0]);
    if (name == "align") return std::ceil(given[0] / at(1, 1)) * at(1, 1);
    throw std::invalid_argument("no function '" + name + "'");
  }

  static double missed(double n, double total, double k) {
    double value = 1;
    for (double i = 0; i < k; ++i) value *= std::max(0.0, total - n - i) / (total - i);
    return value;
  }
  static double choices(double n, double k) {
    double value = 1;
    for (double i = 0; i < k; ++i) value *= (n - i) / (i + 1);
    return value;
  }

  void expect(char sign) {
    if (!take(sign))
      throw std::invalid_argument(std::string("'") + sign + "' expected in " + text_);
  }

  const std::string& text_;
  const Names& names_;
  std::size_t next_ = 0;
};

}  // namespace ferry
