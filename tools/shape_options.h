// The options of an exchange, which `ferry bench`, `ferry plan` and `ferry topology` share. If an
// option has a choice of names, its help lists them, and so does the error about any other name.
#pragma once

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "ferry/config.h"

namespace ferry::tools {

// Adds an option whose argument is one of `names`. The current `value` is the default.
template <typename T>
void add_choice(CLI::App& app, const std::string& option, const std::string& text,
                const std::map<std::string, T>& names, T& value) {
  std::string all, standard;
  for (const auto& [name, meaning] : names) {
    all += (all.empty() ? "" : " | ") + name;
    if (meaning == value && standard.empty()) standard = name;
  }
  const auto choose = [option, names, all, &value](const std::string& name) {
    const auto found = names.find(name);
    if (found == names.end())
      throw CLI::ValidationError(option, fmt::format("'{}' is none of {}", name, all));
    value = found->second;
  };
  app.add_option_function<std::string>(option, choose, fmt::format("{}: {}", text, all))
      ->default_str(standard);
}

// Adds --tokens, --hidden, --top-k, --experts, --dtype, --layout, --wire and --node-sums.
void add_shape(CLI::App& app, ExchangeConfig& shape);

// Throws std::invalid_argument if a token has more experts than there are.
void check_shape(const ExchangeConfig& shape);

// A division of the ranks: first those with tokens, then those with experts.
struct Split {
  int token_ranks = 0, expert_ranks = 0;
};

// Reads "6:2". Empty: the text has another form, or a number is not from 1 to 65536.
std::optional<Split> parse_split(std::string_view text) noexcept;

// Sets token_ranks and expert_ranks.
void set_roles(const Split& split, ExchangeConfig& exchange);

}  // namespace ferry::tools
