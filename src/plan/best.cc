#include "plan/best.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace ferry::internal {

namespace {

bool knows_a_rate(const std::vector<Prediction>& predictions) {
  return std::ranges::any_of(predictions, [](const Prediction& one) {
    return std::ranges::any_of(one.loads, [](const Load& load) { return load.gb_s > 0; });
  });
}

double outermost_bytes(const Prediction& prediction) {
  if (prediction.loads.empty()) return 0;
  return prediction.loads.front().dispatch_bytes + prediction.loads.front().combine_bytes;
}

// Sums of the same terms in another order are equal.
bool less(double a, double b) { return a < b * (1 - 1e-9); }

std::string with_unit(double value, std::array<const char*, 4> units) {
  std::size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < units.size(); ++unit) value /= 1000;
  return fmt::format("{:.3g} {}", value, units[unit]);
}

const Load* find_load(const Prediction& prediction, const std::string& name) {
  const auto found = std::ranges::find(prediction.loads, name, &Load::name);
  return found == prediction.loads.end() ? nullptr : &*found;
}

std::string by_bytes(const std::vector<Prediction>& best_first) {
  const Prediction& best = best_first.front();
  if (best.loads.empty()) return best.strategy + ": no byte crosses a link";
  std::string text =
      fmt::format("{}: no rate is known; the busiest link of a {} gets {}", best.strategy,
                  best.loads.front().name, bytes_text(outermost_bytes(best)));
  for (std::size_t i = 1; i < best_first.size(); ++i)
    text += fmt::format(", {} with {}", bytes_text(outermost_bytes(best_first[i])),
                        best_first[i].strategy);
  return text;
}

}  // namespace

void put_best_first(std::vector<Prediction>& predictions) {
  const bool timed = knows_a_rate(predictions);
  const auto better = [&](const Prediction& a, const Prediction& b) {
    if (timed && less(a.pair_us(), b.pair_us())) return true;
    return !(timed && less(b.pair_us(), a.pair_us())) &&
           less(outermost_bytes(a), outermost_bytes(b));
  };
  // Insertion: `better` is no order that std::sort could rely on, and there are few.
  for (std::size_t i = 1; i < predictions.size(); ++i)
    for (std::size_t j = i; j > 0 && better(predictions[j], predictions[j - 1]); --j)
      std::swap(predictions[j], predictions[j - 1]);
}

std::string why(const std::vector<Prediction>& best_first) {
  const Prediction& best = best_first.front();
  if (!knows_a_rate(best_first)) return by_bytes(best_first);
  std::string text = fmt::format("{}: {} limits it", best.strategy, best.limited_by);
  if (const Load* const load = find_load(best, best.limited_by)) {
    text += fmt::format(", with {} out and {} home", bytes_text(load->dispatch_bytes),
                        bytes_text(load->combine_bytes));
    if (load->gb_s > 0) text += fmt::format(" at {:.4g} GB/s", load->gb_s);
  }
  text += "; it takes " + time_text(best.pair_us());
  for (std::size_t i = 1; i < best_first.size(); ++i) {
    const Prediction& other = best_first[i];
    text += fmt::format(", {} {}", other.strategy, time_text(other.pair_us()));
    if (i == 1 && other.limited_by != best.limited_by)
      text += fmt::format(" ({} limits that)", other.limited_by);
  }
  return text;
}

std::string bytes_text(double bytes) { return with_unit(bytes, {"B", "KB", "MB", "GB"}); }

std::string time_text(double us) { return with_unit(us, {"us", "ms", "s", "ks"}); }

}  // namespace ferry::internal
