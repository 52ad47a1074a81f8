// The options of an exchange, which `ferry bench`, `ferry plan` and `ferry topology` share. An
// option with a choice of names lists them in its help, and in the message when a name is none of
// them.
#pragma once

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <map>
#include <string>

#include "ferry/config.h"

namespace ferry::tools {

// What `value` holds is the default.
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

// --tokens, --hidden, --top-k, --experts, --dtype, --layout, --wire and --node-sums.
void add_shape(CLI::App& app, ExchangeConfig& shape);

// Throws std::invalid_argument when a token has more experts than there are.
void check_shape(const ExchangeConfig& shape);

}  // namespace ferry::tools
