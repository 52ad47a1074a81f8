// A report as one HTML page that needs no network: page.html, which draws `data` in the browser.
// `ferry compare` fills the same page (python/ferry/bench/page.py).
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace ferry::tools {

// `data`: "title" and "lines" of text, and what is to be drawn: "bench" and "trace" of ferry bench,
// "rows" [R, R] between ranks and "experts", the rows of each rank's, "topology" of ferry
// topology, or "plan" of ferry plan. Throws std::runtime_error when the file cannot be written.
void write_page(const std::string& file, const nlohmann::ordered_json& data);

// "2026-01-31 12:00, 2 cores of <processor>, 1.4 of them busy": when and where, for the first
// lines.
std::string when_and_where();

}  // namespace ferry::tools
