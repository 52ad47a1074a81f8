// Writes a report as one HTML page that needs no network: page.html with `data`, which the page
// draws in the browser. `ferry compare` fills the same page (python/ferry/bench/page.py).
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace ferry::tools {

// `data` has "title" and "lines" of text, and the values to draw: "bench" and "trace" of ferry
// bench, "rows" [R, R] between ranks and "experts" with the rows of each rank's experts, "topology"
// of ferry topology, or "plan" of ferry plan. Throws std::runtime_error if the file cannot be
// written.
void write_page(const std::string& file, const nlohmann::ordered_json& data);

// Returns the time, the machine and its load average for the first lines, such as "2026-01-31
// 12:00, 2 cores of <processor>, load 1.4".
std::string when_and_where();

}  // namespace ferry::tools
