// The planner: the times of dispatch and combine on a machine, the resource that limits them, and
// the times if a resource were twice as fast. Nothing is measured, and no group is needed.
// docs/plan.md explains the model, docs/planning.md has examples. Functions throw
// Error(kInvalidArgument) with the line, the value and the limit.
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

// A tree of ranks, which says which ranks share a copy of a token, and the links between ranks
// where these are not the links of the tree. Rates are of one direction, in 1e9 bytes/s; 0:
// unknown, which limits nothing. A `source` says where a rate comes from: "stated", "measured",
// "fitted" or "assumed", and by whom.
struct FERRY_EXPORT Machine {
  enum class Shape : std::uint8_t {
    kMesh,   // every two ranks of a group of `level`
    kRing,   // neighbours in a group of `level`; the last rank and the first are neighbours
    kPairs,  // the given pairs of positions in each group of `level`
    kIndex,  // ranks at the same position in sibling groups of `level`
    kXor,    // positions i and i xor `mask` in each group of `level`
  };
  enum class Duplex : std::uint8_t { kFull, kHalf };  // half: both directions share the rate

  // Links of one kind; both ends may send. A rank passes on tokens that it received for others.
  struct Link {
    std::string name;
    Shape shape = Shape::kMesh;
    std::string level = {};  // empty: the whole machine is the group (not for kIndex)
    int mask = 0;
    std::vector<std::array<int, 2>> pairs = {};
    double gb_s = 0;  // the rate of each link
    double latency_us = 0;
    double issue_us = 0;    // the sender's time for a message; messages are issued one by one
    std::string port = {};  // the port that all links of the kind at a rank share; empty: none
    std::vector<std::array<double, 2>> curve = {};  // {bytes of a message, GB/s}, ascending
    std::string source = {};
    int line = 0;  // line in the text of the machine; 0: not from a text
  };

  // A limit that the links of a kind share at a rank, or at a group of `level`.
  struct Port {
    std::string name;
    std::string level = {};  // empty: each rank has one
    double gb_s = 0;
    Duplex duplex = Duplex::kFull;
    std::string source = {};
    int line = 0;  // as in Link
  };

  // A device on each rank that moves or copies bytes.
  struct Engine {
    std::string name;
    double gb_s = 0;
    bool sends = false;     // used for the tokens that a rank sends as a source
    bool relays = false;    // used for the tokens that a rank passes on
    bool reorders = false;  // reorders rows before they are sent and after they arrive
    std::string source = {};
    int line = 0;  // as in Link
  };

  // The caches of a node. They hold the rows and rank_mb for each rank. Up to a sum of mb[0] MB all
  // rows are in a cache, from mb[1] MB on none are, and in between the cached part falls linearly.
  struct Caches {
    std::array<double, 2> mb = {};
    double rank_mb = 0;  // other memory that a rank uses

    // The part of the rows that is not in a cache: 0 to 1.
    double part_beyond(double bytes, double num_ranks) const;
  };
  // The time of a dispatch, or of a combine, on the processors and the memory that the ranks of a
  // node share. It is the sum of
  //   rank_us for each rank,
  //   waiting_us for each rank without a processor of its own,
  //   token_ns for each pair of a token and a rank that receives it, in one row or several,
  //   the bytes of rows at gb_s[0] if they are in a cache, else at gb_s[1].
  struct Copying {
    double rank_us = 0, waiting_us = 0, token_ns = 0;
    std::array<double, 2> gb_s = {};

    double ranks_us(double num_ranks, int processors) const;
    double bytes_us(double bytes, double part_beyond) const;
    // `tokens`: pairs of a token and a rank that receives it.
    double rows_us(double tokens, double bytes, double part_beyond) const;
  };
  struct Host {
    Copying dispatch, combine;
    int processors = 0;  // 0: one for each rank
    Caches caches = {};
    double network_gb_s = 0;  // rate of the processors for bytes between nodes; 0: unlimited
    bool together = false;    // all nodes are simulated on one host and share its processors
    double flag_ns = 0;       // time of a flag between two cores at the calibration; 0: unknown
    std::string source = {};
  };

  std::string name;  // name of the preset or file, for reports
  Topology tree = {};
  std::vector<Link> links = {};  // empty: the links of the tree
  std::vector<Port> ports = {};
  std::vector<Engine> engines = {};
  Host host = {};
  double memory_gb = 0;   // memory of a rank; 0: unknown
  double contention = 1;  // factor for communication while the rank computes

  // A preset ("ubbv2:2@port10"), the text of a topology ("host:2@12.5GB/s,rank:4"), or several
  // lines: docs/plan.md has the grammar.
  static Machine parse(std::string_view text);
  std::string to_text() const;
  // The first `num_ranks` ranks and the links between them, where a ring is closed again; or, for
  // more ranks, more groups of the outermost level.
  Machine resized(int num_ranks) const;
};

FERRY_EXPORT std::vector<std::string> machine_presets();

// A published model: the numbers that a planner needs.
struct Model {
  std::string name;
  int hidden, layers, dense_layers, experts, top_k;
  int groups, groups_chosen;  // node-limited routing; 1, 1: none
  int shared;                 // experts that every token goes to
  int ffn;                    // inner size of a routed expert
};
FERRY_EXPORT const std::vector<Model>& models();
// Throws for an unknown name, with the nearest name.
FERRY_EXPORT const Model& find_model(std::string_view name);

// The exchange of each rank. Each rank has a contiguous block of experts; with
// exchange.expert_ranks, which must ascend, each of these ranks has one.
struct Workload {
  ExchangeConfig exchange = {};  // max_tokens: of each rank
  // Routing is uniform, so that all choices of K experts are equally likely, unless one of these is
  // set:
  int groups = 1, groups_chosen = 1;  // experts of M of G equal groups, chosen uniformly
  std::vector<double> loads = {};     // [experts]: relative number of tokens
  std::vector<int> ids = {};          // [tokens, K], a trace; -1: not sent

  // The parallelism of a model. The ranks of the machine are one stage of its pipeline, and
  // exchange with each other.
  struct Parallel {
    int tp = 1;             // neighbours with the same tokens: each sends its share of them, and
                            // receives the results of the other shares
    int pp = 1;             // stages
    int layers = 1;         // MoE layers of all stages
    int micro_batches = 1;  // each of exchange.max_tokens
    double compute_us = 0;  // compute time of a layer for a micro-batch

    std::int64_t stage_layers() const noexcept { return (std::int64_t{layers} + pp - 1) / pp; }
  };
  Parallel parallel = {};
};

// A forward step under Workload::Parallel. A backward step moves the same bytes in the opposite
// directions.
struct Step {
  double gathered_bytes = 0;  // from TP neighbours, for each rank and layer
  double gather_us = 0;
  double layer_us = 0;   // compute, exchange and gather of a micro-batch, one after the other
  double paired_us = 0;  // the same if one of two micro-batches computes while the other
                         // exchanges and gathers, Machine::contention times as slowly
  double step_us = 0, paired_step_us = 0;  // all layers of a stage, micro-batches and stages
};

struct PlanOptions {
  int chunks = 32;         // pieces of each message, so that relays overlap
  bool by_classes = true;  // one rank of each class of equal ranks is simulated
  bool doubled = true;     // fills Prediction::doubled
};

// The busiest link, port or engine of one kind, in its busier direction.
struct Load {
  std::string name;
  double gb_s = 0;
  double dispatch_bytes = 0, combine_bytes = 0;
  double dispatch_us = 0, combine_us = 0;  // times of that instance
  int instances = 0;
  std::string source = {};
};

// Equal tasks, with their start and end.
struct Span {
  std::string what;
  double start_us = 0, end_us = 0;
  double bytes = 0;  // bytes of one task
  std::int64_t count = 0;
};

struct Prediction {
  std::string strategy;
  double dispatch_us = 0, combine_us = 0;
  // Lower bounds of the times, for any order of messages over the ways of the strategy.
  double dispatch_bound_us = 0, combine_bound_us = 0;
  // Upper bound of a dispatch and its combine; pair_us() where they were simulated.
  double at_most_us = 0;
  int chunks = 0;  // pieces of a message in the simulation; 0: times are the bounds
  // Bytes that come over links in a dispatch: to the rank that receives the most for its own
  // experts, and to the rank that receives the most to pass on.
  double received_bytes = 0, staged_bytes = 0;
  std::string limited_by;  // the load with the most work
  std::vector<Load> loads;
  std::vector<std::pair<std::string, double>> doubled;  // pair_us with a load twice as fast
  std::vector<Span> dispatch_spans, combine_spans;
  Step step;

  double pair_us() const noexcept { return dispatch_us + combine_us; }
  double bound_us() const noexcept { return dispatch_bound_us + combine_bound_us; }
};

struct Plan {
  std::vector<Prediction> predictions;  // the best first
  // Memory of a rank for the exchange, with any strategy: window_bytes() of the configuration; with
  // expert_ranks, that of the first of these ranks. 0: the exchange is refused, for the reason in a
  // note.
  WindowBytes window = {};
  std::string sentence;            // the reason why the first is the best
  std::vector<std::string> notes;  // assumptions behind the figures
};

// Predicts every strategy that the machine can run.
FERRY_EXPORT Plan plan(const Machine& machine, const Workload& workload,
                       const PlanOptions& options = {});

}  // namespace ferry
