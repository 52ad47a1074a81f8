// Each count with the law that it follows. docs/scale.md says what follows from them.
#include <fmt/format.h>

#include <utility>

#include "simulator/counts.h"

namespace ferry::test {

namespace {

// The numbers that the counts grow with.
struct Sizes {
  explicit Sizes(const Shape& shape)
      : ranks(shape.num_ranks()),
        local_ranks(ranks / shape.num_hosts()),
        other_hosts(shape.num_hosts() - 1),
        columns(shape.num_experts + (shape.layout == Layout::kRankMajor ? ranks : 0)),
        entries(static_cast<double>(shape.tokens) * shape.top_k) {}

  double ranks, local_ranks, other_hosts, columns, entries;
};

class List {
 public:
  void add(const std::string& name, double value, const std::string& law_name, double law) {
    counts_.push_back({name, value, law_name, law});
  }
  void add(const std::string& name, std::int64_t value, const std::string& law_name, double law) {
    add(name, static_cast<double>(value), law_name, law);
  }
  std::vector<Count> take() { return std::move(counts_); }

 private:
  std::vector<Count> counts_;
};

// While ranks meet, over sockets. Hosts: each has a name in the hello of a rank.
void add_meeting(List& list, const std::string& step, const StepCounts& counts, const Sizes& of) {
  list.add(step + ": sends of rank 0", counts.rank_0.messages, "R", of.ranks);
  list.add(step + ": sends of another rank", counts.most_others.messages, "1", 1);
  list.add(step + ": bytes of another rank", counts.most_others.bytes, "1 + H",
           2400 + 12 * of.other_hosts);
}

// Every rank sends a message to one rank of each other host, directly or through others.
void add_messages(List& list, const std::string& step, const StepCounts& counts, const Sizes& of) {
  list.add(step + ": chain", counts.chain, "1", 1);
  list.add(step + ": packets of a rank", counts.most.messages, "H", of.other_hosts);
  for (const auto& [kind, sent] : counts.kinds) {
    const std::string bytes = fmt::format("{}: bytes, {}", step, kind);
    list.add(fmt::format("{}: messages, {}", step, kind), sent.messages, "H", of.other_hosts);
    if (kind == "record") {
      list.add(bytes, sent.bytes, "H (1 + T K)", of.other_hosts * (300 + 2 * of.entries));
    } else if (kind == "rows" || kind.starts_with("sum")) {
      list.add(bytes, sent.bytes, "H + T K", 48 * of.other_hosts + 20 * of.entries);
    } else {
      list.add(bytes, sent.bytes, "H", of.other_hosts);
    }
  }
}

// Memory comes in whole pages and in parts of 64 KiB.
void add_standing(List& list, const ScaleCounts& counted, const Sizes& of) {
  list.add("descriptors of rank 0", counted.descriptors_rank_0, "R + N", of.ranks + of.local_ranks);
  list.add("descriptors of another rank", counted.descriptors_others, "1 + N", 1 + of.local_ranks);
  list.add("endpoints of a rank", counted.endpoints, "H", of.other_hosts);
  list.add("windows of a host, reserved", counted.segment_bytes, "N R T K",
           of.local_ranks * of.ranks * of.entries);
  list.add("control of a host", counted.control_bytes, "R (1 + C)",
           of.ranks * (1024 + 16 * of.columns));
  list.add(
      "backed by a rank", counted.backed_bytes, "R + H C + T K",
      65536 + 4160 * of.ranks + (1 + of.other_hosts) * (4096 + 16 * of.columns) + 64 * of.entries);
  list.add("private of rank 0", counted.private_rank_0, "R", of.ranks);
  list.add("private of another rank", counted.private_others, "1 + H + R",
           250'000 + 262'144 * of.other_hosts + 400 * of.ranks);
  list.add("counts read by a rank", counted.count_entries, "R C", of.ranks * of.columns);
}

}  // namespace

std::vector<Count> counts_of(const Shape& shape, const ScaleCounts& counted) {
  const Sizes of(shape);
  List list;
  add_meeting(list, "join", counted.join, of);
  // Every rank gets a text of each host, and the address of each rank.
  list.add("join: bytes of rank 0", counted.join.rank_0.bytes, "R (1 + H + R)",
           of.ranks * (2300 + 300 * of.other_hosts + 24 * of.ranks));
  list.add("join: chain", counted.join.chain, "1", 1);
  add_meeting(list, "create", counted.create, of);
  list.add("create: bytes of rank 0", counted.create.rank_0.bytes, "R", of.ranks);
  add_messages(list, "create", counted.create, of);
  add_messages(list, "dispatch", counted.dispatch, of);
  add_messages(list, "combine", counted.combine, of);
  list.add("death: chain", counted.death.chain, "1", 1);
  list.add("death: packets of a rank", counted.death.most.messages, "H", of.other_hosts);
  add_standing(list, counted, of);
  return list.take();
}

}  // namespace ferry::test
