// Reads from hwloc where hardware threads are, and makes the levels of a topology from that.
#include <fmt/format.h>
#include <hwloc.h>

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <stdexcept>

#include "tools/bench/cores.h"
#include "tools/topology/parts.h"

namespace ferry::tools {

namespace {

std::uint64_t numa_of(hwloc_topology_t topology, hwloc_obj_t thread) {
  hwloc_obj_t numa = nullptr;
  while ((numa = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, numa))) {
    if (hwloc_bitmap_isset(numa->cpuset, thread->os_index)) return numa->gp_index;
  }
  return 0;
}

std::uint64_t cache_of(hwloc_obj_t thread) {
  std::uint64_t last = 0;
  for (hwloc_obj_t above = thread->parent; above; above = above->parent) {
    if (hwloc_obj_type_is_dcache(above->type)) last = above->gp_index;
  }
  return last;
}

// Formats counts as "3+5", or as "4" if all of them are 4.
std::string fanout(const std::vector<int>& counts) {
  const bool even = std::ranges::count(counts, counts[0]) == std::ssize(counts);
  return even ? std::to_string(counts[0]) : fmt::format("{}", fmt::join(counts, "+"));
}

}  // namespace

std::vector<Place> places_here() {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) throw std::runtime_error("hwloc does not start");
  const std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)> owner(
      topology, &hwloc_topology_destroy);
  if (hwloc_topology_load(topology) != 0)
    throw std::runtime_error("hwloc cannot read this machine");
  const std::vector<int> allowed = bench::allowed_cores();
  std::vector<Place> places;
  hwloc_obj_t thread = nullptr;
  while ((thread = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_PU, thread))) {
    if (std::ranges::count(allowed, static_cast<int>(thread->os_index)) > 0)
      places.push_back({.numa = numa_of(topology, thread), .cache = cache_of(thread)});
  }
  if (places.empty())
    throw std::runtime_error("hwloc knows none of the processors this process may use");
  return places;
}

std::string found_levels(std::vector<Place> places, int num_ranks) {
  std::ranges::sort(places);
  // The numbers of caches in each domain, and of ranks in each domain and each cache.
  std::vector<int> caches, in_domain, in_cache;
  const Place* before = nullptr;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(num_ranks); ++rank) {
    const Place& place = places[rank * places.size() / static_cast<std::size_t>(num_ranks)];
    const bool new_domain = !before || place.numa != before->numa;
    if (new_domain) caches.push_back(0), in_domain.push_back(0);
    if (new_domain || place.cache != before->cache) ++caches.back(), in_cache.push_back(0);
    ++in_domain.back();
    ++in_cache.back();
    before = &place;
  }
  std::string text = "host:1";
  if (caches.size() > 1) text += fmt::format(",numa:{}", caches.size());
  const bool shows_caches = in_cache.size() > in_domain.size();
  if (shows_caches) text += ",cache:" + fanout(caches);
  return text + ",rank:" + fanout(shows_caches ? in_cache : in_domain);
}

// Joins the levels of all hosts in one tree. A level that is not found on some host gets one group
// there within each group of the level above.
std::string join_hosts(const std::vector<Topology>& hosts) {
  std::string text = fmt::format("host:{}", hosts.size());
  std::vector<std::size_t> above(hosts.size(), 1);  // groups of each host at the level above
  for (const char* name : {"numa", "cache", "rank"}) {
    std::vector<int> counts;
    bool is_there = false;
    for (std::size_t host = 0; host < hosts.size(); ++host) {
      const int level = hosts[host].find_level(name);
      const std::vector<int> fanouts =
          level < 0 ? std::vector<int>(above[host], 1) : hosts[host].level(level).fanout;
      is_there = is_there || level >= 0;
      counts.insert(counts.end(), fanouts.begin(), fanouts.end());
      above[host] = static_cast<std::size_t>(std::accumulate(fanouts.begin(), fanouts.end(), 0));
    }
    if (is_there) text += fmt::format(",{}:{}", name, fanout(counts));
  }
  return text;
}

std::string found_in_job(Group& group) {
  using Text = std::array<char, 1024>;
  const Topology& met = group.topology();
  const auto num_ranks = static_cast<int>(met.node_ranks(met.node_of(group.rank())).size());
  Text mine{};
  found_levels(places_here(), num_ranks).copy(mine.data(), mine.size() - 1);
  std::vector<Text> all(static_cast<std::size_t>(group.size()));
  require_ok(group.all_gather(&mine, sizeof mine, all.data()));
  std::vector<Topology> hosts;
  for (int node = 0; node < met.num_nodes(); ++node)
    hosts.push_back(Topology::parse(all[static_cast<std::size_t>(met.node_ranks(node)[0])].data()));
  return join_hosts(hosts);
}

}  // namespace ferry::tools
