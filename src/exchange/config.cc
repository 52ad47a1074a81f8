// What a configuration may be, and the creation of an exchange by all ranks together.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <new>

#include "exchange/state.h"
#include "topology/caches.h"

namespace ferry::internal {

namespace {

constexpr int kMaxTopK = 32;
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
std::string describe(const ExchangeConfig& c) {
  return fmt::format(
      "max_tokens={} hidden={} num_experts={} top_k={} dtype={} layout={} expert_alignment={} "
      "zero_gaps={} "
      "row_capacity={} expert_capacity={} max_output_row_bytes={} depth={} expert_rank=[{}]",
      c.max_tokens, c.hidden, c.num_experts, c.top_k, data_type_name(c.dtype),
      layout_name(c.layout), c.expert_alignment, c.zero_gaps, c.row_capacity, c.expert_capacity,
      c.max_output_row_bytes, c.depth, fmt::join(c.expert_rank, ","));
}

void require_agreement(GroupState& group, const ExchangeConfig& config) {
  const std::vector<std::string> all =
      group.rendezvous().all_gather(describe(config), group.deadline());
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

// Tells exchanges of this process apart, so that a handle is only used where it was made.
std::uint64_t next_id() noexcept {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

ExchangeConfig complete_config(ExchangeConfig c, int num_ranks) {
  require_in("max_tokens", c.max_tokens, 0, kMaxTokens);
  require_in("hidden", c.hidden, 1, kMaxRowElements);
  require_in("num_experts", c.num_experts, 1, kMaxExperts);
  require_in("top_k", c.top_k, 1, kMaxTopK);
  require_in("dtype", static_cast<int>(c.dtype), 0, static_cast<int>(DataType::kBytes));
  require_in("layout", static_cast<int>(c.layout), 0, static_cast<int>(Layout::kPadded));
  require_in("expert_alignment", c.expert_alignment, 1, 1 << 20);
  require_in("row_capacity", c.row_capacity, 0, kMaxTokens);
  require_in("expert_capacity", c.expert_capacity, 0, kMaxTokens);
  require_in("max_output_row_bytes", c.max_output_row_bytes, 0, 4 * kMaxRowElements);
  require_in("depth", c.depth, 1, kMaxDepth);
  require_in("workers", c.workers, 1, kMaxWorkers);
  if (c.layout == Layout::kPadded && c.row_capacity > 0) {
    throw Error(Code::kInvalidArgument,
                "row_capacity does not apply to the padded layout; set expert_capacity");
  }
  if (c.layout != Layout::kPadded && c.expert_capacity > 0) {
    throw Error(Code::kInvalidArgument,
                fmt::format("expert_capacity {} is for the padded layout, this one is {}",
                            c.expert_capacity, layout_name(c.layout)));
  }
  if (c.layout == Layout::kPadded && c.expert_capacity == 0)
    c.expert_capacity = std::max<std::int64_t>(1, c.max_tokens * num_ranks);
  if (c.max_output_row_bytes == 0) c.max_output_row_bytes = c.hidden * 4;
  return c;
}

ExchangeState::ExchangeState(std::shared_ptr<GroupState> group, const ExchangeConfig& config)
    : group_(std::move(group)),
      config_(complete_config(config, usable(group_).size())),
      rank_(group_->rank()),
      size_(group_->size()),
      map_(config_, size_),
      layout_(config_, map_.num_experts(), map_.max_num_local(), size_),
      id_(next_id()),
      crew_(config_.workers),
      crowded_(size_ * config_.workers > group_->num_cpus()),
      cache_bytes_(last_level_cache_bytes()) {
  Rendezvous& rendezvous = group_->rendezvous();
  const Deadline by = group_->deadline();
  require_agreement(*group_, config_);
  segment_ = rendezvous.share_segment(layout_.segment_bytes(), by);
  pool_ = std::make_shared<Pool>(segment_, layout_, rank_);
  bool backed = segment_->commit(layout_.control(rank_), layout_.control_bytes());
  if (backed) new (&control(rank_)) ControlWords{};
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
  for (int peer = 0; peer < size_; ++peer) {
    segment_->map_in(layout_.control(peer), layout_.control_bytes());
    segment_->map_in(layout_.window(peer) + layout_.buffer(first),
                     layout_.expected_section_rows() * layout_.row_bytes());
  }
  group_->log(GroupState::LogLevel::kInfo,
              fmt::format("exchange {}: {}; {} bytes of window backed, {} reserved", id_,
                          describe(config_), pool_->backed_bytes(), layout_.window_bytes()));
}

// Peers that wait for this rank find its flags up and its record missing (operations.cc, examine).
ExchangeState::~ExchangeState() {
  raise(control(rank_).read_through, kLeft);
  raise(control(rank_).progress, kLeft);
  group_->ring();
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
  const internal::ExpertMap map(complete, num_ranks);
  const internal::WindowLayout layout(complete, map.num_experts(), map.max_num_local(), num_ranks);
  const std::uint64_t sections = complete.layout == Layout::kPadded ? map.max_num_local() : 1;
  const std::uint64_t row =
      layout.row_bytes() + 12 + 4 * (layout.weights_per_row() + layout.ids_per_row());
  return {sections * layout.expected_section_rows() * row + layout.control_bytes(),
          layout.window_bytes()};
}

}  // namespace ferry
