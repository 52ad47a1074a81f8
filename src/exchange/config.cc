// What a configuration may be, and the creation of an exchange by all ranks together.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <new>

#include "exchange/internode/forwarder.h"
#include "exchange/state.h"
#include "plan/choose.h"
#include "topology/caches.h"

namespace ferry::internal {

namespace {

constexpr int kMaxDepth = 16;
constexpr int kMaxWorkers = 1024;
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 31;
constexpr std::int64_t kMaxRowElements = std::int64_t{1} << 31;
constexpr int kMaxExperts = 1 << 20;

void require(bool holds, const char* name, std::int64_t value, std::int64_t least,
             std::int64_t most) {
  if (holds) return;
  throw Error(Code::kInvalidArgument,
              fmt::format("{} is {}, need {} to {}", name, value, least, most));
}

void require_in(const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
  require(value >= least && value <= most, name, value, least, most);
}

// Everything that ranks must agree on, as text that can be shown.
std::string describe_config(const ExchangeConfig& c) {
  std::string text = fmt::format(
      "max_tokens={} hidden={} num_experts={} top_k={} dtype={} layout={} expert_alignment={} "
      "zero_gaps={} row_capacity={} expert_capacity={} max_output_row_bytes={} depth={} "
      "expert_rank=[{}]",
      c.max_tokens, c.hidden, c.num_experts, c.top_k, data_type_name(c.dtype),
      layout_name(c.layout), c.expert_alignment, c.zero_gaps, c.row_capacity, c.expert_capacity,
      c.max_output_row_bytes, c.depth, fmt::join(c.expert_rank, ","));
  text += fmt::format(
      " wire={} combine_wire={} scale_order={} scale_bytes={} shared={}x{} rule {} "
      "special={},{},{} "
      "tp_size={} algorithm={} node_sums={} replicas={}",
      wire_name(c.wire), wire_name(c.combine_wire), static_cast<int>(c.scale_order), c.scale_bytes,
      c.shared.num_experts, c.shared.num_ranks, static_cast<int>(c.shared.rule), c.special.zero,
      c.special.copy, c.special.constant, c.tp_size, static_cast<int>(c.algorithm),
      static_cast<int>(c.node_sums), static_cast<int>(c.replicas.choice));
  for (const std::vector<int>& instances : c.replicas.instances)
    text += fmt::format("[{}]", fmt::join(instances, ","));
  return text;
}

// Between nodes all come here first: a rank may still owe others messages of an exchange that it
// has destroyed, and moves none while it waits in a rendezvous.
void meet(GroupState& group) {
  if (group.one_node()) return;
  if (Status status = group.barrier(); !status.ok()) throw Error(status.code(), status.message());
}

void require_agreement(GroupState& group, const ExchangeConfig& config) {
  const std::vector<std::string> all =
      group.rendezvous().all_gather(describe_config(config), group.deadline());
  for (int rank = 1; rank < group.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    throw Error(
        Code::kMismatch,
        fmt::format("ranks 0 and {} create different exchanges: rank 0 has {}; rank {} has {}",
                    rank, all[0], rank, all[rank]));
  }
}

GroupState& usable(const std::shared_ptr<GroupState>& group) {
  if (!group)
    throw Error(Code::kClosed, "cannot create an exchange: this Group is not a member of anything");
  if (Status verdict = group->verdict(); !verdict.ok())
    throw Error(verdict.code(), verdict.message());
  return *group;
}

AlgorithmChoice choose(const GroupState& group, const ExchangeConfig& config) {
  if (config.algorithm != Algorithm::kAuto) return {config.algorithm, "the configuration says so"};
  return choose_algorithm(group.topology(), traffic_of(config, group.size()));
}

int largest_node(const Topology& topology) {
  std::size_t most = 0;
  for (int node = 0; node < topology.num_nodes(); ++node)
    most = std::max(most, topology.node_ranks(node).size());
  return static_cast<int>(most);
}

// Tells exchanges of this process apart, so that a handle is only used where it was made.
std::uint64_t next_id() noexcept {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

void check_capacities(const ExchangeConfig& c) {
  require_in("row_capacity", c.row_capacity, 0, kMaxTokens);
  require_in("expert_capacity", c.expert_capacity, 0, kMaxTokens);
  if (c.layout == Layout::kPadded && c.row_capacity > 0) {
    throw Error(Code::kInvalidArgument,
                "row_capacity does not apply to the padded layout; set expert_capacity");
  }
  if (c.layout != Layout::kPadded && c.expert_capacity > 0) {
    throw Error(Code::kInvalidArgument,
                fmt::format("expert_capacity {} is for the padded layout, this one is {}",
                            c.expert_capacity, layout_name(c.layout)));
  }
}

void check_wires(const ExchangeConfig& c) {
  require_in("wire", static_cast<int>(c.wire), 0, static_cast<int>(Wire::kFp8Ue8m0));
  require_in("combine_wire", static_cast<int>(c.combine_wire), 0,
             static_cast<int>(CombineWire::kLogfmt10));
  require_in("scale_order", static_cast<int>(c.scale_order), 0, 1);
  require_in("scale_bytes", c.scale_bytes, 0, kMaxRowElements);
  if (c.wire != Wire::kNone && c.dtype > DataType::kFp32) {
    throw Error(Code::kInvalidArgument,
                fmt::format("wire {} takes bf16, fp16 or fp32 tokens, dtype is {}",
                            wire_name(c.wire), data_type_name(c.dtype)));
  }
  if (c.wire != Wire::kNone && c.scale_bytes > 0) {
    throw Error(Code::kInvalidArgument,
                fmt::format("scale_bytes is {}, wire {} makes scales of its own", c.scale_bytes,
                            wire_name(c.wire)));
  }
  if (c.scale_order == ScaleOrder::kColumnMajor && c.scale_bytes % 4 != 0) {
    throw Error(
        Code::kInvalidArgument,
        fmt::format("scale_bytes is {}, column-major scales have 4 bytes each", c.scale_bytes));
  }
}

void check_shared(const ExchangeConfig& c, int domain_ranks) {
  const SharedExperts& shared = c.shared;
  require_in("shared.num_ranks", shared.num_ranks, 0, domain_ranks);
  require_in("shared.rule", static_cast<int>(shared.rule), 0, 1);
  if ((shared.num_experts == 0) != (shared.num_ranks == 0) ||
      (shared.num_experts > 0 && shared.num_ranks % shared.num_experts != 0)) {
    throw Error(Code::kInvalidArgument,
                fmt::format("shared.num_ranks is {}, need a multiple of shared.num_experts {}",
                            shared.num_ranks, shared.num_experts));
  }
  if (shared.rule == SharedRule::kByToken && shared.num_experts > 1) {
    throw Error(
        Code::kInvalidArgument,
        fmt::format("shared.num_experts is {}, the rule by token takes 1", shared.num_experts));
  }
}

void check_replicas(const ExchangeConfig& c) {
  require_in("replicas.choice", static_cast<int>(c.replicas.choice), 0,
             static_cast<int>(ReplicaChoice::kByTable));
  std::vector<bool> taken(c.num_experts);
  for (std::size_t id = 0; id < c.replicas.instances.size(); ++id) {
    if (c.replicas.instances[id].empty()) {
      throw Error(Code::kInvalidArgument,
                  fmt::format("replicas.instances[{}] is empty, need 1 expert or more", id));
    }
    for (const int expert : c.replicas.instances[id]) {
      if (expert < 0 || expert >= c.num_experts || taken[expert]) {
        throw Error(Code::kInvalidArgument,
                    fmt::format("replicas.instances[{}] names expert {}, need experts in [0, {}), "
                                "each once",
                                id, expert, c.num_experts));
      }
      taken[expert] = true;
    }
  }
}

}  // namespace

ExchangeConfig complete_config(ExchangeConfig c, int num_ranks) {
  require_in("max_tokens", c.max_tokens, 0, kMaxTokens);
  require_in("hidden", c.hidden, 1, kMaxRowElements);
  require_in("num_experts", c.num_experts, 1, kMaxExperts);
  require_in("top_k", c.top_k, 1, kMaxTopK);
  require_in("shared.num_experts", c.shared.num_experts, 0, kMaxSharedExperts);
  if (c.max_tokens * (c.top_k + c.shared.num_experts) >= kMaxTokens) {
    throw Error(
        Code::kInvalidArgument,
        fmt::format("max_tokens {} with {} entries each (top_k, shared experts), need fewer "
                    "than {} entries",
                    c.max_tokens, c.top_k + c.shared.num_experts, kMaxTokens));
  }
  require_in("dtype", static_cast<int>(c.dtype), 0, static_cast<int>(DataType::kBytes));
  require_in("layout", static_cast<int>(c.layout), 0, static_cast<int>(Layout::kPadded));
  require_in("expert_alignment", c.expert_alignment, 1, 1 << 20);
  require_in("max_output_row_bytes", c.max_output_row_bytes, 0, 4 * kMaxRowElements);
  require_in("depth", c.depth, 1, kMaxDepth);
  require_in("workers", c.workers, 1, kMaxWorkers);
  require_in("tp_size", c.tp_size, 1, kMaxPositions);
  require_in("algorithm", static_cast<int>(c.algorithm), 0, 3);
  require_in("node_sums", static_cast<int>(c.node_sums), 0, 2);
  require_in("special.zero", c.special.zero, 0, kMaxExperts);
  require_in("special.copy", c.special.copy, 0, kMaxExperts);
  require_in("special.constant", c.special.constant, 0, kMaxExperts);
  check_capacities(c);
  check_wires(c);
  check_shared(c, num_ranks / c.tp_size);
  check_replicas(c);
  if (c.layout == Layout::kPadded && c.expert_capacity == 0)
    c.expert_capacity = std::max<std::int64_t>(1, c.max_tokens * num_ranks);
  if (c.max_output_row_bytes == 0) c.max_output_row_bytes = c.hidden * 4;
  return c;
}

WindowShape window_shape(const ExchangeConfig& config, const ExpertMap& map, int num_ranks,
                         int num_windows) {
  const WireFormat& wire = wire_format(config.wire);
  const bool as_they_are = wire.encode == nullptr;
  return {.num_ranks = num_ranks,
          .num_windows = num_windows,
          .num_columns = map.num_columns(),
          .max_local = map.max_num_local(),
          .row_bytes = as_they_are ? config.hidden * element_bytes(config.dtype)
                                   : wire.encoded_bytes(config.hidden, config.dtype),
          .scale_bytes = static_cast<std::size_t>(
              as_they_are ? config.scale_bytes : wire.num_scales(config.hidden) * 4)};
}

ExchangeState::ExchangeState(std::shared_ptr<GroupState> group, const ExchangeConfig& config)
    : group_(std::move(group)),
      config_(complete_config(config, usable(group_).size())),
      rank_(group_->rank()),
      size_(group_->size()),
      wire_(wire_format(config_.wire)),
      combine_wire_(wire_format(config_.combine_wire)),
      choice_(choose(*group_, config_)),
      everybody_(std::make_shared<ActiveSet>(config_, size_, rank_, std::span<const int>())),
      layout_(config_,
              window_shape(config_, everybody_->map, size_, largest_node(group_->topology()))),
      id_(next_id()),
      workers_(config_.workers),
      crowded_(group_->crowded(config_.workers)),
      cache_bytes_(last_level_cache_bytes()),
      active_(everybody_),
      last_set_(everybody_) {
  Rendezvous& rendezvous = group_->rendezvous();
  const Deadline by = group_->deadline();
  meet(*group_);
  require_agreement(*group_, config_);
  index_replicas();
  view_ = {rendezvous.share_segment(layout_.segment_bytes(), by), &layout_, group_->positions()};
  pool_ = std::make_shared<Pool>(view_.segment, layout_, group_->positions()[rank_]);
  if (!group_->one_node()) cross_nodes();
  bool backed = back_words();
  const int first = pool_->free_buffer().value();
  backed = backed && pool_->back_rows(first, num_sections(), layout_.expected_section_rows());
  pool_->mark_used(first);
  const std::vector<std::string> all = rendezvous.all_gather(backed ? "1" : "0", by);
  const auto refused = std::find(all.begin(), all.end(), "0");
  if (refused != all.end()) {
    throw Error(Code::kCapacity,
                fmt::format("rank {} could not get memory for its window of {} expected bytes",
                            refused - all.begin(), pool_->backed_bytes()));
  }
  for (int peer = 0; peer < size_; ++peer)
    view_.segment->map_in(layout_.control(peer), layout_.control_bytes());
  for (const int position : group_->positions()) {
    if (position >= 0)
      view_.segment->map_in(layout_.window(position) + layout_.buffer(first),
                            layout_.expected_section_rows() * layout_.row_bytes());
  }
  group_->log(GroupState::LogLevel::kInfo,
              fmt::format("exchange {}: {}; {} bytes of window backed, {} reserved", id_,
                          describe_config(config_), pool_->backed_bytes(), layout_.window_bytes()));
}

// Before anybody can send a message: the all-gather that follows is a barrier.
void ExchangeState::cross_nodes() {
  const Topology& topology = group_->topology();
  for (int rank = 0; rank < size_; ++rank) {
    const int first = rank - rank % config_.tp_size;
    if (topology.node_of(rank) == topology.node_of(first)) continue;
    throw Error(
        Code::kInvalidArgument,
        fmt::format("tp_size is {}: ranks {} and {} share rows and must be of one node, "
                    "they are of nodes {} and {}",
                    config_.tp_size, first, rank, topology.node_of(first), topology.node_of(rank)));
  }
  forwarder_ = std::make_shared<Forwarder>(*group_, view_, config_, choice_.algorithm);
}

// My own words, and those of the ranks of other nodes that I write down here.
bool ExchangeState::back_words() {
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_ && (!forwarder_ || !forwarder_->table().is_served[peer])) continue;
    if (!view_.segment->commit(layout_.control(peer), layout_.control_bytes())) return false;
    new (&control(peer)) ControlWords{};
  }
  return true;
}

void ExchangeState::index_replicas() {
  const std::vector<std::vector<int>>& instances = config_.replicas.instances;
  if (!instances.empty()) logical_.resize(config_.num_experts);
  for (std::size_t id = 0; id < instances.size(); ++id) {
    for (const int expert : instances[id]) logical_[expert] = static_cast<std::int32_t>(id);
  }
}

// Peers that wait for this rank find its flags up and its record missing (operations.cc, examine).
ExchangeState::~ExchangeState() {
  raise(control(rank_).read_through, kLeft);
  raise(control(rank_).progress, kLeft);
  group_->ring();
  if (!forwarder_) return;
  forwarder_->tell_left();
  group_->leave_open(std::move(forwarder_));
}

ExchangeStats ExchangeState::stats() const noexcept {
  ExchangeStats stats = stats_;
  if (!forwarder_) return stats;
  const CrossedBytes crossed = forwarder_->crossed(group_->topology().find_level(Topology::kHost));
  stats.link_row_bytes = crossed.rows;
  stats.link_bytes = crossed.all;
  return stats;
}

std::vector<CrossedBytes> ExchangeState::crossed_bytes() const {
  std::vector<CrossedBytes> levels;
  const int host = group_->topology().find_level(Topology::kHost);
  for (int level = 0; forwarder_ && level <= host; ++level)
    levels.push_back(forwarder_->crossed(level));
  return levels;
}

WindowBytes ExchangeState::window_bytes() const noexcept {
  return {pool_->backed_bytes(), layout_.window_bytes()};
}

}  // namespace ferry::internal

namespace ferry {

WindowBytes window_bytes(const ExchangeConfig& config, int num_ranks) {
  if (num_ranks < 1)
    throw Error(Code::kInvalidArgument, fmt::format("num_ranks is {}, need 1 or more", num_ranks));
  const ExchangeConfig complete = internal::complete_config(config, num_ranks);
  const internal::ActiveSet everybody(complete, num_ranks, 0, {});
  const internal::WindowShape shape =
      internal::window_shape(complete, everybody.map, num_ranks, num_ranks);
  const internal::WindowLayout layout(complete, shape);
  const std::uint64_t sections = complete.layout == Layout::kPadded ? shape.max_local : 1;
  const std::uint64_t row = layout.row_bytes() + layout.scale_bytes() + 12 +
                            4 * (layout.weights_per_row() + layout.ids_per_row());
  return {sections * layout.expected_section_rows() * row + layout.control_bytes(),
          layout.window_bytes()};
}

}  // namespace ferry
