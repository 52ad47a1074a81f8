// Machines as JSON, and files of JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "ferry/plan.h"

namespace ferry::tools {

// All of a file, without a byte order mark. Throws std::invalid_argument when it cannot be read, or
// is larger than kMostJsonBytes (json_limits.h).
std::string read_file(const std::string& name);

// A machine from a text, a preset or a file .txt or .json. Errors in a file name it, and its line.
Machine read_machine(const std::string& text);

// An error about the machine, with the name of its file where it came from one.
std::string with_file(const std::string& machine, const std::string& what);

// docs/plan.md has the keys; an unknown one is refused with its line and the nearest one.
Machine machine_from_json(const std::string& text);

// What the library says, without its own number of the error.
std::string reason_of(const nlohmann::json::exception& error);

}  // namespace ferry::tools
