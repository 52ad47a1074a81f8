// Reads machines from JSON, and JSON files.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "ferry/plan.h"

namespace ferry::tools {

// Reads a whole file, without its byte order mark. Throws std::invalid_argument if the file cannot
// be read, or is larger than kMostJsonBytes (json_limits.h).
std::string read_file(const std::string& name);

// Reads a machine from a text, the name of a preset, or the name of a .txt or .json file. An error
// in a file names the file and the line.
Machine read_machine(const std::string& text);

// Returns an error text about the machine. It names the file if the machine came from a file.
std::string with_file(const std::string& machine, const std::string& what);

// Reads the keys that docs/plan.md lists. An error about an unknown key names its line and the
// nearest key.
Machine machine_from_json(const std::string& text);

// Returns the message of the JSON library without its error number.
std::string reason_of(const nlohmann::json::exception& error);

}  // namespace ferry::tools
