// Machines as JSON, and files of JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "ferry/plan.h"

namespace ferry::tools {

// All of a file. Throws std::invalid_argument when it cannot be read.
std::string read_file(const std::string& name);

// docs/plan.md has the keys; an unknown one is refused with its line and the nearest one.
Machine machine_from_json(const std::string& text);

// What the library says, without its own number of the error.
std::string reason_of(const nlohmann::json::exception& error);

}  // namespace ferry::tools
