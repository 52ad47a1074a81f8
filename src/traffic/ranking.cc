#include "traffic/ranking.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

namespace ferry::internal {

namespace {

bool knows_a_rate(const std::vector<Candidate>& candidates) {
  return std::ranges::any_of(candidates, [](const Candidate& one) {
    return std::ranges::any_of(one.links, [](const LinkUse& link) { return link.gb_s > 0; });
  });
}

double outermost_bytes(const Candidate& candidate) {
  if (candidate.links.empty()) return 0;
  return candidate.links.front().dispatch_bytes + candidate.links.front().combine_bytes;
}

// Sums that differ by rounding alone are equal.
bool less(double a, double b) { return a < b * (1 - 1e-9); }

std::string with_unit(double value, std::array<const char*, 4> units) {
  std::size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < units.size(); ++unit) value /= 1000;
  return fmt::format("{:.3g} {}", value, units[unit]);
}

const LinkUse* find_link(const Candidate& candidate, const std::string& name) {
  const auto found = std::ranges::find(candidate.links, name, &LinkUse::name);
  return found == candidate.links.end() ? nullptr : &*found;
}

std::string by_bytes(const std::vector<Candidate>& candidates, const std::vector<int>& order) {
  const Candidate& best = candidates[order.front()];
  if (best.links.empty()) return best.name + ": no byte crosses a link";
  std::string text =
      fmt::format("{}: no rate is known; the busiest link of a {} gets {}", best.name,
                  best.links.front().name, bytes_text(outermost_bytes(best)));
  for (std::size_t i = 1; i < order.size(); ++i) {
    const Candidate& other = candidates[order[i]];
    text += fmt::format(", {} with {}", bytes_text(outermost_bytes(other)), other.name);
  }
  return text;
}

}  // namespace

std::string limit_of(const std::vector<LinkUse>& links, double bound_us) {
  const auto most = std::ranges::max_element(links, {}, &LinkUse::us);
  if (most == links.end() || bound_us <= 0) return "nothing";
  return most->us() * 2 < bound_us ? "latency" : most->name;
}

std::vector<int> best_first(const std::vector<Candidate>& candidates) {
  const bool timed = knows_a_rate(candidates);
  const auto better = [&](int first, int second) {
    const Candidate &a = candidates[first], &b = candidates[second];
    if (timed && less(a.pair_us, b.pair_us)) return true;
    return !(timed && less(b.pair_us, a.pair_us)) && less(outermost_bytes(a), outermost_bytes(b));
  };
  std::vector<int> order(candidates.size());
  std::iota(order.begin(), order.end(), 0);
  // Insertion sort: `better` is not transitive, which std::sort needs, and candidates are few.
  for (std::size_t i = 1; i < order.size(); ++i)
    for (std::size_t j = i; j > 0 && better(order[j], order[j - 1]); --j)
      std::swap(order[j], order[j - 1]);
  return order;
}

std::string why(const std::vector<Candidate>& candidates, const std::vector<int>& order) {
  const Candidate& best = candidates[order.front()];
  if (!knows_a_rate(candidates)) return by_bytes(candidates, order);
  std::string text = fmt::format("{}: {} limits it", best.name, best.limited_by);
  if (const LinkUse* const link = find_link(best, best.limited_by)) {
    text += fmt::format(", with {} in dispatch and {} in combine", bytes_text(link->dispatch_bytes),
                        bytes_text(link->combine_bytes));
    if (link->gb_s > 0) text += fmt::format(" at {:.4g} GB/s", link->gb_s);
  }
  text += "; it takes " + time_text(best.pair_us);
  for (std::size_t i = 1; i < order.size(); ++i) {
    const Candidate& other = candidates[order[i]];
    text += fmt::format(", {} {}", other.name, time_text(other.pair_us));
    if (i == 1 && other.limited_by != best.limited_by)
      text += fmt::format(" ({} limits that)", other.limited_by);
  }
  return text;
}

std::string bytes_text(double bytes) { return with_unit(bytes, {"B", "KB", "MB", "GB"}); }

std::string time_text(double us) { return with_unit(us, {"us", "ms", "s", "ks"}); }

}  // namespace ferry::internal
