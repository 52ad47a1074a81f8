// The steps of EPLB for one layer, as ferry.placement calls them.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <utility>
#include <vector>

#include "core/bindings.h"
#include "routing/balance.h"

namespace ferry::python {

namespace nb = nanobind;

namespace {

using Loads = std::vector<float>;
using Ints = std::vector<int>;

std::pair<Ints, Ints> pack_evenly(const Loads& weights, int num_packs) {
  auto [pack, position] = internal::pack_evenly(weights, num_packs);
  return {std::move(pack), std::move(position)};
}

std::pair<Ints, Ints> replicate(const Loads& loads, int num_slots) {
  auto [expert, replica] = internal::replicate(loads, num_slots);
  return {std::move(expert), std::move(replica)};
}

std::pair<Ints, Ints> balance(const Loads& loads, int num_slots, int num_groups, int num_nodes,
                              int num_ranks) {
  auto [expert, replica] = internal::balance(loads, {.num_slots = num_slots,
                                                     .num_groups = num_groups,
                                                     .num_nodes = num_nodes,
                                                     .num_ranks = num_ranks});
  return {std::move(expert), std::move(replica)};
}

}  // namespace

void bind_balance(nb::module_& module) {
  using nb::arg;
  module.def("pack_evenly", &pack_evenly, arg("weights"), arg("num_packs"),
             "(pack, position in it) of each item; for ferry.placement.");
  module.def("replicate", &replicate, arg("loads"), arg("num_slots"),
             "(expert, index of its replica) of each slot; for ferry.placement.");
  module.def("balance", &balance, arg("loads"), arg("num_slots"), arg("num_groups"),
             arg("num_nodes"), arg("num_ranks"),
             "(expert, index of its replica) of each slot, rank by rank; for ferry.placement.");
}

}  // namespace ferry::python
