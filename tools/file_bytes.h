// Reads the file that a user named.
#pragma once

#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "tools/refuse.h"

namespace ferry::tools {

// Returns all bytes of `file`. Throws std::invalid_argument, with a text that begins with `option`,
// if it cannot be read.
inline std::string file_bytes(const std::string& file, const char* option = "") {
  std::ifstream stream(file, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  if (!stream || !text) refuse("{}cannot read '{}'", option, file);
  return std::move(text).str();
}

}  // namespace ferry::tools
