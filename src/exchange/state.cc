#include "exchange/state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <thread>

#include "base/check.h"
#include "exchange/arguments/refusal.h"
#include "exchange/setup/agreement.h"
#include "exchange/setup/configuration.h"
#include "memory/available.h"
#include "topology/caches.h"
#include "topology/numa.h"

namespace ferry::internal {

namespace {

// Backs the flags, records and count rows of a rank with memory. False: no memory.
bool back_flags(const Setup& setup, const WindowView& view, int rank) {
  return view.segment->commit(setup.layout.control(rank), setup.layout.control_bytes());
}

// Initialises the flags of a rank that has called no operation. They count from the view with this
// `number`.
void begin_flags(const WindowView& view, int rank, std::uint64_t number) {
  new (&view.control(rank)) ControlFlags{};
  Protocol::prepare(view.control(rank), number, 0);
}

// Writes to the new segment of a node without members what each rank of the view has prepared: the
// number of its last operation, which is 0 for a newcomer. Each newcomer of the node writes the
// same.
void begin_new_segment(const GroupState& group, const WindowView& view, std::uint64_t object) {
  std::vector<std::uint64_t> numbers(view.num_ranks());
  for (const auto& [number, of, rank] : group.survival().known())
    if (of == object) numbers[rank] = number;
  for (const int rank : group.view().members)
    Protocol::prepare(view.control(rank), group.view().number, numbers[rank]);
}

// Backs and initialises the flags of this rank, and of the ranks of other nodes that it serves.
// `offer`: the exchange that a newcomer joins; the members have initialised the flags (make_place),
// unless the segment is new. False: no memory.
bool begin_flags(const GroupState& group, const Setup& setup, const WindowView& view,
                 const Ways& ways, const Offer* offer) {
  if (offer && !offer->is_new) return true;
  for (int peer = 0; peer < setup.num_ranks; ++peer) {
    if (peer != setup.rank && !ways.serves(peer)) continue;
    if (!back_flags(setup, view, peer)) return false;
    if (!offer) begin_flags(view, peer, group.view().number);
  }
  if (offer) begin_new_segment(group, view, offer->number);
  return true;
}

// Backs with memory this rank's row lists, and the sums that other ranks write for it. False: no
// memory.
bool back_lists(const Setup& setup, const WindowView& view) {
  const WindowLayout& layout = setup.layout;
  const int mine = view.local_ranks[setup.rank];
  if (!view.segment->commit(layout.sums_before(mine), layout.sums_bytes())) return false;
  const int lists = setup.places->row_lists[setup.rank];
  return lists < 0 || view.segment->commit(layout.row_lists(lists), layout.row_lists_bytes());
}

Error no_memory(const Setup& setup) {
  return Error(Code::kCapacity,
               fmt::format("no memory for a window of {} expected bytes (max_tokens {}, hidden {}, "
                           "{} ranks): {} bytes are free",
                           window_bytes(setup.config, setup.num_ranks, setup.rank).expected,
                           setup.config.max_tokens, setup.config.hidden, setup.num_ranks,
                           available_memory()));
}

// Maps the pages of each rank of the view that this rank will read or write, so that the first
// operations take no page faults there. Pages of ranks that the view lacks have no memory.
void map_in(const Setup& setup, const WindowView& view, int buffer, const Survival& survival) {
  const WindowLayout& layout = setup.layout;
  for (int peer = 0; peer < setup.num_ranks; ++peer) {
    if (!survival.has(peer)) continue;
    view.segment->map_in(layout.control(peer), layout.control_bytes());
    if (!view.here(peer)) continue;
    view.segment->map_in(layout.sums_before(view.local_ranks[peer]), layout.sums_bytes());
    const int lists = setup.places->row_lists[peer], window = setup.places->windows[peer];
    if (lists >= 0) view.segment->map_in(layout.row_lists(lists), layout.row_lists_bytes());
    if (window < 0) continue;
    view.segment->map_in(layout.window(window) + layout.buffer(buffer),
                         layout.expected_section_rows() * layout.row_bytes());
  }
}

std::string text_of(const ExchangeConfig& config) {
  std::string text;
  for (const auto& [name, value] : config_fields(config))
    text += fmt::format("{}={} ", name, value);
  return text;
}

// Between nodes a rank packs rows into messages, and other ranks store them. The time of a send
// then says nothing about the kind of stores, so no choice is learned from it.
StoreChoice choose_stores(const GroupState& group) {
  const unsigned processors = std::max(1U, std::thread::hardware_concurrency());
  const std::uint64_t of_ranks = std::min<std::uint64_t>(group.size(), processors);
  return {of_ranks * private_cache_bytes(), last_level_cache_bytes(),
          group.one_node() ? &LearnedStores::of_groups(group.size()) : nullptr};
}

std::shared_ptr<WorkerPool> make_workers(int workers) {
  return std::make_shared<WorkerPool>(workers,
                                      workers > 1 ? my_cpus_by_node() : std::vector<CpuList>());
}

// The parts that a rank makes by itself.
struct OwnParts {
  std::shared_ptr<Pool> pool;
  int first_buffer = 0;
  std::optional<Ways> ways;
  std::shared_ptr<WorkerPool> workers;
  std::unique_ptr<Trace> trace;
};

// `offer`: the exchange that a newcomer joins; null: all ranks of the view make the exchange
// together.
OwnParts make_own_parts(GroupState& group, const Setup& setup, const WindowView& view,
                        const Offer* offer) {
  OwnParts own;
  const bool everybody = offer ? std::ssize(makers_in(offer->terms)) == group.size()
                               : group.survival().waited() == nullptr;
  own.ways.emplace(group, setup, view, everybody);
  own.pool = std::make_shared<Pool>(view.segment, setup.layout, setup.places->windows[setup.rank]);
  own.first_buffer = own.pool->free_buffer().value();
  own.pool->mark_used(own.first_buffer);
  if (!begin_flags(group, setup, view, *own.ways, offer) || !back_lists(setup, view) ||
      !own.pool->back_rows(own.first_buffer, setup.num_sections(), setup.expected_section_rows()))
    throw no_memory(setup);
  own.workers = make_workers(setup.config.workers);
  own.ways->use(own.workers);
  own.trace = Trace::open(group, setup);
  return own;
}

// Call when all ranks of the view have backed their parts.
ExchangeParts put_together(const std::shared_ptr<GroupState>& group,
                           std::unique_ptr<const Setup> made, std::string terms,
                           const WindowView& view, OwnParts own) {
  const Setup& setup = *made;
  FERRY_CHECK(view.num_ranks(), ==, setup.num_ranks);
  map_in(setup, view, own.first_buffer, group->survival());
  group->log(LogLevel::kInfo, fmt::format("exchange {}: {}; {} bytes of window backed, {} reserved",
                                          setup.id, text_of(setup.config), own.pool->backed_bytes(),
                                          own.pool->window_bytes()));
  return {.group = group,
          .setup = std::move(made),
          .terms = std::move(terms),
          .view = view,
          .pool = std::move(own.pool),
          .ways = *own.ways,
          .protocol = Protocol(*group, setup, view, *own.ways),
          .workers = std::move(own.workers),
          .stores = choose_stores(*group),
          .trace = std::move(own.trace)};
}

ExchangeParts make_parts(const std::shared_ptr<GroupState>& group, const ExchangeConfig& config) {
  const Deadline by = usable(group).deadline();
  std::unique_ptr<const Setup> setup = agree_on_setup(*group, config, by);
  group->begin_channels();
  const WindowView view{share_segment(*group, setup->layout.segment_bytes(), by), &setup->layout,
                        group->local_ranks(), setup->places};
  OwnParts own;
  // After this call either all ranks have their parts of the exchange, or all throw. No rank sends
  // a message of the exchange before that.
  make_alike(*group, by, [&] {
    own = make_own_parts(*group, *setup, view, nullptr);
    return std::string();
  });
  std::string terms = terms_in_view(*group, *setup);
  return put_together(group, std::move(setup), std::move(terms), view, std::move(own));
}

// On a newcomer.
ExchangeParts join_parts(const std::shared_ptr<GroupState>& group, const ExchangeConfig& config) {
  auto [setup, offer] = take_offered_setup(usable(group), config);
  const WindowView view{offer.segment, &setup->layout, group->local_ranks(), setup->places};
  group->begin_channels_at(offer.number);
  OwnParts own = make_own_parts(*group, *setup, view, &offer);
  return put_together(group, std::move(setup), std::move(offer.terms), view, std::move(own));
}

}  // namespace

ExchangeState::ExchangeState(const std::shared_ptr<GroupState>& group, const ExchangeConfig& config,
                             bool joins)
    : parts_(joins ? join_parts(group, config) : make_parts(group, config)) {
  const View& view = group->view();
  if (view.number > 1 || group->survival().waited()) {
    parts_.protocol.renew(view);
    require_ok(parts_.protocol.fits_view());
  }
  count();
  group->survival().add(this);
  if (joins) parts_.ways.release();
}

Offer ExchangeState::offer() const {
  const auto& segment = parts_.view.segment;
  return {.terms = parts_.terms,
          .segment = segment,
          .number = parts_.ways.none() ? segment->id() : parts_.ways.number()};
}

ExchangeState::~ExchangeState() {
  parts_.group->survival().remove(this);
  parts_.group->counters().add(Counter::kWindowBytes, 0 - counted_window_bytes_);
  parts_.protocol.close();
  parts_.ways.keep_open();
}

// All ranks of the view have ended their calls in the last view, so no rank still reads rows that
// were published there.
void ExchangeState::renew(const View& view) noexcept {
  parts_.protocol.renew(view);
  parts_.pool->forget_published();
}

// The lost rank may have called operations that no other rank has called, and later operations get
// the same numbers. So its records and count rows are cleared, too.
void ExchangeState::make_place(int rank, std::uint64_t next) {
  if (!back_flags(*parts_.setup, parts_.view, rank)) throw no_memory(*parts_.setup);
  begin_flags(parts_.view, rank, next);
  const WindowLayout& layout = parts_.setup->layout;
  const std::size_t records = layout.record(rank, 0);
  std::memset(parts_.view.segment->data() + records, 0,
              layout.control(rank) + layout.control_bytes() - records);
}

ExchangeStats ExchangeState::stats() const noexcept {
  ExchangeStats stats = parts_.stats;
  if (parts_.ways.none()) return stats;
  const int host = parts_.group->topology().find_level(Topology::kHost);
  const CrossedBytes crossed = parts_.ways.crossed(host);
  stats.link_row_bytes = crossed.rows;
  stats.link_bytes = crossed.all;
  return stats;
}

void ExchangeState::count() noexcept {
  const ExchangeStats now = stats();
  const std::uint64_t window_bytes = parts_.pool->backed_bytes();
  RankCounters& counters = parts_.group->counters();
  counters.add(Counter::kDispatches, now.dispatches - counted_.dispatches);
  counters.add(Counter::kCombines, now.combines - counted_.combines);
  counters.add(Counter::kRowsSent, now.rows_sent - counted_.rows_sent);
  counters.add(Counter::kRowsReceived, now.rows_received - counted_.rows_received);
  counters.add(Counter::kBytesSent, now.bytes_sent - counted_.bytes_sent);
  counters.add(Counter::kBytesPulled, now.bytes_pulled - counted_.bytes_pulled);
  counters.add(Counter::kBytesCopied, now.bytes_copied - counted_.bytes_copied);
  counters.add(Counter::kLinkBytes, now.link_bytes - counted_.link_bytes);
  counters.add(Counter::kWindowBytes, window_bytes - counted_window_bytes_);
  counted_ = now;
  counted_window_bytes_ = window_bytes;
}

std::vector<CrossedBytes> ExchangeState::crossed_bytes() const {
  std::vector<CrossedBytes> levels;
  const int host = parts_.group->topology().find_level(Topology::kHost);
  for (int level = 0; !parts_.ways.none() && level <= host; ++level)
    levels.push_back(parts_.ways.crossed(level));
  return levels;
}

WindowBytes ExchangeState::window_bytes() const noexcept {
  return {parts_.pool->backed_bytes(), parts_.pool->window_bytes()};
}

Status ExchangeState::allocate_outputs(std::int64_t num_rows, std::int64_t hidden, DataType dtype,
                                       OutputRows& outputs) {
  outputs.release();
  const auto& pool = parts_.pool;
  const Setup& setup = *parts_.setup;
  if (Status verdict = parts_.group->verdict(); !verdict.ok()) return verdict;
  const std::int64_t element = static_cast<std::int64_t>(element_bytes(dtype));
  if (num_rows < 0 || num_rows > setup.max_rows() || hidden < 1 || element == 0 ||
      hidden > setup.config.max_output_row_bytes / element) {
    return {Code::kInvalidArgument,
            fmt::format("outputs of [{}, {}] {}, need 0 to {} rows of at most {} bytes "
                        "(max_output_row_bytes)",
                        num_rows, hidden, data_type_name(dtype), setup.max_rows(),
                        setup.config.max_output_row_bytes),
            setup.rank};
  }
  const std::optional<int> buffer = pool->free_buffer(parts_.protocol.min_read_through());
  if (!buffer || pool->num_pinned() >= setup.layout.live_buffers()) {
    return {Code::kCapacity,
            fmt::format("{} views of the window are alive, the limit is {}", pool->num_pinned(),
                        setup.layout.live_buffers()),
            setup.rank};
  }
  if (!pool->back(*buffer, setup.layout.rows(), num_rows * hidden * element)) {
    return {Code::kCapacity,
            fmt::format("no memory for outputs of {} bytes", num_rows * hidden * element),
            setup.rank};
  }
  FERRY_CHECK(pool->published(*buffer), <=, parts_.protocol.min_read_through());
  pool->mark_used(*buffer);
  outputs.data = pool->data(*buffer);
  outputs.num_rows = num_rows;
  outputs.hidden = hidden;
  outputs.dtype = dtype;
  outputs.pin = std::make_shared<Pin>(pool, *buffer);
  return {};
}

// Calls progress() first: ranks of other nodes send a message when they have read rows.
Status ExchangeState::may_write(const void* rows, bool& may) {
  parts_.group->progress();
  if (Status verdict = parts_.group->verdict(); !verdict.ok()) return verdict;
  const Pool::Found found = parts_.pool->find(rows, 1);
  if (found.in_window && !found.buffer)
    return refuse_with(
        parts_.setup->rank,
        "may_write: the address is not one of rows of a view that is alive, though it "
        "lies in the window");
  may =
      !found.buffer || parts_.pool->published(*found.buffer) <= parts_.protocol.min_read_through();
  return {};
}

}  // namespace ferry::internal
