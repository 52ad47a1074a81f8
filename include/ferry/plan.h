// The planner: how long dispatch and combine take on a machine, what limits them, and what would
// change that. Pure: nothing is measured, no rank is needed. docs/plan.md explains the model with
// examples. Throws Error(kInvalidArgument) with the line, the value and the limit.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ferry/config.h"
#include "ferry/export.h"
#include "ferry/topology.h"

namespace ferry {

// A tree of ranks, which says who shares a copy, and the links between ranks, if the tree alone
// does not tell how they are joined. Rates are 1e9 bytes/s and of one direction; 0: unknown, which
// limits nothing. A `source` is "stated", "measured", "fitted" or "assumed", and of whom.
struct FERRY_EXPORT Machine {
  enum class Shape : std::uint8_t {
    kMesh,   // every two ranks of a group of `level`
    kRing,   // neighbours in a group of `level`, the last and the first too
    kPairs,  // the given pairs of positions in each group of `level`
    kIndex,  // ranks at the same position in sibling groups of `level`
    kXor,    // positions i and i xor `mask` in each group of `level`
  };
  enum class Duplex : std::uint8_t { kFull, kHalf };  // half: both directions share the rate

  // Links of one kind; both ends may send. A rank passes on what it got for others.
  struct Link {
    std::string name;
    Shape shape = Shape::kMesh;
    std::string level = {};  // empty: the whole machine is the group (not for kIndex)
    int mask = 0;
    std::vector<std::array<int, 2>> pairs = {};
    double gb_s = 0;  // of each link
    double latency_us = 0;
    double issue_us = 0;    // of a message, on the sender, one after the other
    std::string port = {};  // shared by all links of the kind at a rank; empty: none
    std::vector<std::array<double, 2>> curve = {};  // {bytes of a message, GB/s}, ascending
    std::string source = {};
    int line = 0;  // of the text that it was read from; 0: of none
  };

  // What the links of a kind share at a rank, or at a group of `level`.
  struct Port {
    std::string name;
    std::string level = {};  // empty: each rank has one
    double gb_s = 0;
    Duplex duplex = Duplex::kFull;
    std::string source = {};
    int line = 0;  // as of a link
  };

  // What moves or copies bytes on each rank.
  struct Engine {
    std::string name;
    double gb_s = 0;
    bool sends = false;     // takes part in what a rank sends of its own
    bool relays = false;    // in what it passes on
    bool reorders = false;  // brings rows into order before they leave and after they came
    std::string source = {};
    int line = 0;  // as of a link
  };

  // Rows and rank_mb for each rank are counted together, in MB. Up to mb[0] all rows are in a
  // cache, from mb[1] on none are, and between the two the part that is falls evenly.
  struct Caches {
    std::array<double, 2> mb = {};
    double rank_mb = 0;  // what else a rank uses

    // The part of the rows' bytes that is in no cache.
    double part_beyond(double bytes, double num_ranks) const;
  };
  // What a dispatch, or a combine, takes of the processors and the memory that the ranks of a node
  // share: rank_us for each rank, waiting_us for each rank without a processor of its own, token_ns
  // for each pair of a token and a rank that gets it, in one row or several, and the time of all
  // bytes of rows, at gb_s[0] for those in a cache and at gb_s[1] for the others.
  struct Copying {
    double rank_us = 0, waiting_us = 0, token_ns = 0;
    std::array<double, 2> gb_s = {};

    double ranks_us(double num_ranks, int processors) const;
    double bytes_us(double bytes, double part_beyond) const;
    // `tokens`: pairs of a token and a rank that gets it.
    double rows_us(double tokens, double bytes, double part_beyond) const;
  };
  struct Host {
    Copying dispatch, combine;
    int processors = 0;  // 0: one for each rank
    Caches caches = {};
    double network_gb_s = 0;  // at which they move what crosses between nodes; 0: unlimited
    bool together = false;    // one machine plays all nodes, so that they share them
    double flag_ns = 0;       // from a core to the next when this was measured; 0: unknown
    std::string source = {};
  };

  std::string name;  // of the preset or file, for reports
  Topology tree = {};
  std::vector<Link> links = {};  // empty: the tree's own links
  std::vector<Port> ports = {};
  std::vector<Engine> engines = {};
  Host host = {};
  double memory_gb = 0;   // of a rank, 0: unknown
  double contention = 1;  // communication takes so much longer beside compute

  // A preset ("ubbv2:2@port10"), the text of a topology ("host:2@12.5GB/s,rank:4"), or several
  // lines: docs/plan.md has the grammar.
  static Machine parse(std::string_view text);
  std::string to_text() const;
  // The first `num_ranks` ranks and the links between them, a ring closed again; or more groups of
  // the outermost level.
  Machine resized(int num_ranks) const;
};

FERRY_EXPORT std::vector<std::string> machine_presets();

// A model of the field: what of it a planner needs.
struct Model {
  std::string name;
  int hidden, layers, dense_layers, experts, top_k;
  int groups, groups_chosen;  // node-limited routing; 1, 1: none
  int shared;                 // experts that every token goes to
  int ffn;                    // inner size of a routed expert
};
FERRY_EXPORT const std::vector<Model>& models();
// Refuses an unknown name with the nearest one.
FERRY_EXPORT const Model& find_model(std::string_view name);

// What each rank exchanges. Experts lie in contiguous blocks.
struct Workload {
  ExchangeConfig exchange = {};  // max_tokens: of each rank
  // Routing: every choice of K experts is as likely as any other, but for one of these.
  int groups = 1, groups_chosen = 1;  // only experts of M of G equal groups, chosen uniformly
  std::vector<double> loads = {};     // [experts]: how often each is chosen, in any unit
  std::vector<int> ids = {};          // [tokens, K] of a trace; -1: not sent

  // How a model lies on the ranks: those of the machine are one stage of its pipeline, and exchange
  // with each other.
  struct Parallel {
    int tp = 1;             // neighbours that hold the same tokens: each sends its share of them,
                            // and gets the results of the others'
    int pp = 1;             // stages
    int layers = 1;         // MoE layers of all stages
    int micro_batches = 1;  // of exchange.max_tokens each
    double compute_us = 0;  // of a layer and micro-batch, with nothing beside it

    std::int64_t stage_layers() const noexcept { return (std::int64_t{layers} + pp - 1) / pp; }
  };
  Parallel parallel = {};
};

// A forward step under Workload::Parallel. The backward one moves the same bytes, home and out.
struct Step {
  double gathered_bytes = 0;  // that it gets of its TP neighbours, a layer
  double gather_us = 0;
  double layer_us = 0;   // compute, exchange and gather of a micro-batch, one after the other
  double paired_us = 0;  // the same where one of two micro-batches computes while the other
                         // exchanges, which takes Machine::contention times as long
  double step_us = 0, paired_step_us = 0;  // all layers of a stage, micro-batches and stages
};

struct PlanOptions {
  int chunks = 32;         // that each message is cut in, so that relays overlap
  bool by_classes = true;  // ranks that look alike are simulated once
  bool doubled = true;     // fills Prediction::doubled
};

// One kind of link, port or engine: the instance that is busiest, in its busier direction.
struct Load {
  std::string name;
  double gb_s = 0;
  double dispatch_bytes = 0, combine_bytes = 0;
  double dispatch_us = 0, combine_us = 0;  // for that instance alone
  int instances = 0;
  std::string source = {};
};

// Tasks that look alike, and when they ran.
struct Span {
  std::string what;
  double start_us = 0, end_us = 0;
  double bytes = 0;  // of one of them
  std::int64_t count = 0;
};

struct Prediction {
  std::string strategy;
  double dispatch_us = 0, combine_us = 0;
  double dispatch_bound_us = 0, combine_bound_us = 0;  // no order of messages is faster
  // Upper bound of a dispatch and its combine; pair_us() where they were simulated.
  double at_most_us = 0;
  int chunks = 0;  // that messages were cut in for the simulation; 0: times are the bounds
  double received_bytes = 0, staged_bytes = 0;  // of a rank in a dispatch: own rows; for others
  std::string limited_by;                       // the load with the most work
  std::vector<Load> loads;
  std::vector<std::pair<std::string, double>> doubled;  // pair_us if this load were twice as fast
  std::vector<Span> dispatch_spans, combine_spans;
  Step step;

  double pair_us() const noexcept { return dispatch_us + combine_us; }
  double bound_us() const noexcept { return dispatch_bound_us + combine_bound_us; }
};

struct Plan {
  std::vector<Prediction> predictions;  // the best first
  std::string sentence;                 // why the first is the best
  std::vector<std::string> notes;       // what the figures rest on
};

// Every strategy that the machine can run.
FERRY_EXPORT Plan plan(const Machine& machine, const Workload& workload,
                       const PlanOptions& options = {});

}  // namespace ferry
