// Playing a scenario: the order of operations is drawn from the scenario's seed (equal on all
// ranks), everything that a rank may decide alone is drawn from the seed and its rank.
#include "player.h"

#include <cstring>
#include <optional>
#include <thread>

namespace ferry::test {
namespace {

constexpr auto kGuard = std::byte{0xa5};

// One operation of the script: a dispatch (combine < 0) or a combine of a round.
struct Step {
  int round = 0;
  int combine = -1;
};

// An order in which combines follow their dispatch, mixed over rounds when operations overlap.
std::vector<Step> draw_script(const Scenario& scenario, bool mixed) {
  Random random(scenario.seed, 77);
  std::vector<Step> script;
  std::vector<Step> waiting;  // combines whose dispatch is in the script
  const auto move_one = [&] {
    const std::size_t at = mixed ? random.below(static_cast<std::int64_t>(waiting.size())) : 0;
    script.push_back(waiting[at]);
    waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(at));
  };
  for (int round = 0; round < static_cast<int>(scenario.rounds.size()); ++round) {
    script.push_back({round, -1});
    for (int i = 0; i < static_cast<int>(scenario.rounds[round].combines.size()); ++i)
      waiting.push_back({round, i});
    while (!waiting.empty() && !(mixed && random.one_in(2))) move_one();
  }
  while (!waiting.empty()) move_one();
  return script;
}

class Player {
 public:
  Player(Exchange& exchange, int rank, const Scenario& scenario, const PlayOptions& options)
      : exchange_(exchange),
        rank_(rank),
        scenario_(scenario),
        options_(options),
        random_(scenario.seed, 1000 + static_cast<std::uint64_t>(rank)),
        rounds_(scenario.rounds.size()) {}

  void play() {
    for (const Step& step : draw_script(scenario_, options_.halves)) {
      dawdle();
      make_ready(step);
      start(step);
      while (!in_flight_.empty() && random_.one_in(3)) finish_any();
    }
    while (!in_flight_.empty()) finish_any();
    // Views that were kept all along still hold what they held.
    for (std::size_t i = 0; i < rounds_.size(); ++i) {
      if (rounds_[i].received && !rounds_[i].overwritten)
        check_round(static_cast<int>(i), " at the end");
    }
  }

 private:
  struct PlayedRound {
    std::optional<Received> received;
    Handle handle;
    bool overwritten = false;  // used as memory of expert rows
    int combines_left = 0;
  };
  struct Pending {
    Step step;
    Operation operation;
    std::unique_ptr<CombineCall> call;
  };

  std::string name(const Step& step) const {
    return (step.combine < 0 ? "dispatch of round "
                             : "combine " + std::to_string(step.combine) + " of round ") +
           std::to_string(step.round);
  }

  void dawdle() {
    if (!options_.delays) return;
    if (random_.one_in(4)) std::this_thread::yield();
    if (random_.one_in(12))
      std::this_thread::sleep_for(std::chrono::microseconds(random_.below(300)));
  }

  // Room for one more operation in flight, and what the step builds on is received.
  void make_ready(const Step& step) {
    const int needed = step.combine < 0 ? scenario_.rounds[step.round].cached_from : step.round;
    while (!in_flight_.empty() && (static_cast<int>(in_flight_.size()) >= scenario_.config.depth ||
                                   (needed >= 0 && !rounds_[needed].handle))) {
      finish_any();
    }
  }

  void start(const Step& step) {
    if (step.combine < 0) {
      start_dispatch(step);
    } else {
      start_combine(step);
    }
  }

  void start_dispatch(const Step& step) {
    const Round& round = scenario_.rounds[step.round];
    DispatchCall call(scenario_, round, rank_, random_);
    if (round.cached_from >= 0) call.args().cached = rounds_[round.cached_from].handle;
    if (options_.halves && random_.one_in(2)) {
      Pending pending{step, {}, nullptr};
      require_ok(exchange_.dispatch_send(call.args(), pending.operation), name(step) + ", send");
      in_flight_.push_back(std::move(pending));
      return;
    }
    Received received;
    require_ok(exchange_.dispatch(call.args(), received), name(step));
    take(step, std::move(received));
  }

  void start_combine(const Step& step) {
    const Round& round = scenario_.rounds[step.round];
    PlayedRound& played = rounds_[step.round];
    // Peers may still read a received buffer for an earlier combine, so only the first may
    // overwrite it.
    const bool first = played.combines_left == static_cast<int>(round.combines.size());
    const bool may_overwrite = first && played.received && !is_in_flight(step.round);
    Received* const memory = may_overwrite && random_.one_in(2) ? &*played.received : nullptr;
    auto call =
        std::make_unique<CombineCall>(exchange_, scenario_, round, round.combines[step.combine],
                                      rank_, played.handle, memory, random_);
    played.overwritten = played.overwritten || memory != nullptr;
    --played.combines_left;
    if (options_.halves && random_.one_in(2)) {
      Pending pending{step, {}, std::move(call)};
      require_ok(exchange_.combine_send(pending.call->args(), pending.operation),
                 name(step) + ", send");
      in_flight_.push_back(std::move(pending));
      return;
    }
    require_ok(exchange_.combine(call->args()), name(step));
    call->check(name(step));
    maybe_release(step.round);
  }

  bool is_in_flight(int round) const {
    for (const Pending& pending : in_flight_) {
      if (pending.step.round == round && pending.step.combine >= 0) return true;
    }
    return false;
  }

  // Receive halves may come in any order, another one on each rank.
  void finish_any() {
    const std::size_t at = random_.below(static_cast<std::int64_t>(in_flight_.size()));
    Pending pending = std::move(in_flight_[at]);
    in_flight_.erase(in_flight_.begin() + static_cast<std::ptrdiff_t>(at));
    dawdle();
    // A poll may say no for ever only if a peer waits for this rank; a few tries are enough to
    // exercise it.
    for (int i = 0; i < 3 && random_.one_in(2); ++i) {
      if (exchange_.poll(pending.operation)) break;
      std::this_thread::yield();
    }
    if (pending.step.combine < 0) {
      Received received;
      require_ok(exchange_.dispatch_recv(pending.operation, received),
                 name(pending.step) + ", receive");
      take(pending.step, std::move(received));
      return;
    }
    require_ok(exchange_.combine_recv(pending.operation), name(pending.step) + ", receive");
    pending.call->check(name(pending.step));
    maybe_release(pending.step.round);
  }

  void take(const Step& step, Received received) {
    PlayedRound& played = rounds_[step.round];
    played.handle = received.handle;
    played.received = std::move(received);
    played.combines_left = static_cast<int>(scenario_.rounds[step.round].combines.size());
    check_round(step.round, "");
    maybe_release(step.round);
  }

  void check_round(int round, const std::string& when) {
    check_received(scenario_, scenario_.rounds[round], rank_, *rounds_[round].received,
                   "dispatch of round " + std::to_string(round) + when);
  }

  // Views are released early, in time, or never.
  void maybe_release(int round) {
    PlayedRound& played = rounds_[round];
    if (is_in_flight(round) || random_.one_in(3)) return;
    if (played.combines_left == 0 || random_.one_in(4)) played.received.reset();
  }

  Exchange& exchange_;
  const int rank_;
  const Scenario& scenario_;
  const PlayOptions options_;
  Random random_;
  std::vector<PlayedRound> rounds_;
  std::vector<Pending> in_flight_;
};

// Copies dense rows to `pitch`, the bytes between them guarded.
std::vector<std::byte> with_pitch(const std::vector<std::byte>& dense, std::int64_t num_rows,
                                  std::size_t row_bytes, std::size_t pitch) {
  std::vector<std::byte> spread(static_cast<std::size_t>(num_rows) * pitch + 1, kGuard);
  for (std::int64_t row = 0; row < num_rows; ++row) {
    if (row_bytes > 0) std::memcpy(&spread[row * pitch], &dense[row * row_bytes], row_bytes);
  }
  return spread;
}

}  // namespace

DispatchCall::DispatchCall(const Scenario& scenario, const Round& round, int rank, Random& random) {
  const ExchangeConfig& config = scenario.config;
  const internal::RankInput& input = round.inputs[rank];
  const std::size_t row_bytes =
      static_cast<std::size_t>(config.hidden) * element_bytes(config.dtype);
  const std::size_t pitch =
      row_bytes + (random.one_in(2) ? 0 : random.between(1, 9) * element_bytes(config.dtype));
  tokens_ = with_pitch(input.tokens, input.num_tokens, row_bytes, pitch);
  args_.tokens = {tokens_.data(), input.num_tokens, config.hidden, config.dtype,
                  pitch == row_bytes && random.one_in(2) ? 0 : static_cast<std::int64_t>(pitch)};
  args_.topk_weights = round.weights ? input.topk_weights.data() : nullptr;
  if (round.cached_from >= 0) return;
  args_.topk_ids = {input.topk_ids.data(), input.num_tokens, config.top_k, IndexType::kInt64};
  if (random.one_in(2)) {
    narrow_ids_.assign(input.topk_ids.begin(), input.topk_ids.end());
    args_.topk_ids.data = narrow_ids_.data();
    args_.topk_ids.type = IndexType::kInt32;
  }
  if (!input.token_mask.empty()) args_.token_mask = input.token_mask.data();
  if (!input.topk_mask.empty()) args_.topk_mask = input.topk_mask.data();
}

CombineCall::CombineCall(Exchange& exchange, const Scenario& scenario, const Round& round,
                         const CombineCase& combine, int rank, const Handle& handle,
                         Received* received, Random& random)
    : combine_(combine), rank_(rank), num_tokens_(round.inputs[rank].num_tokens) {
  const internal::RankOutput& output = combine.outputs[rank];
  args_.handle = handle;
  place_rows(exchange, round.expected[rank].num_rows, received, random);
  if (output.weighted) args_.topk_weights = round.inputs[rank].topk_weights.data();
  for (int i = 0; i < 2; ++i) {
    if (!output.bias[i].empty()) args_.bias[i] = output.bias[i].data();
  }
  if (combine.weights_home) {
    row_weights_ = output.row_weights;
    row_weights_.push_back(0.0F);  // so that there is a pointer when no row came
    args_.row_weights = row_weights_.data();
    topk_weights_home_.assign(static_cast<std::size_t>(num_tokens_) * scenario.config.top_k + 1,
                              -77.0F);
    args_.out_topk_weights = topk_weights_home_.data();
  }
  const auto row_bytes = combine.hidden * static_cast<std::int64_t>(element_bytes(output.out_type));
  const bool dense = random.one_in(2);
  out_pitch_ = dense ? row_bytes
                     : row_bytes + random.between(1, 5) *
                                       static_cast<std::int64_t>(element_bytes(output.out_type));
  out_.assign(static_cast<std::size_t>(num_tokens_ * out_pitch_) + 64, kGuard);
  args_.out = out_.data();
  args_.out_dtype = output.out_type;
  args_.out_pitch_bytes = dense ? 0 : out_pitch_;
}

void CombineCall::place_rows(Exchange& exchange, std::int64_t num_rows, Received* received,
                             Random& random) {
  const std::vector<std::byte>& rows = combine_.outputs[rank_].expert_rows;
  args_.expert_rows = {nullptr, num_rows, combine_.hidden, combine_.row_type, 0};
  const bool fits = received != nullptr && received->hidden == combine_.hidden &&
                    received->dtype == combine_.row_type;
  if (fits) {
    if (!rows.empty()) std::memcpy(received->data, rows.data(), rows.size());
    args_.expert_rows = received->rows();
    return;
  }
  if (random.one_in(2)) {
    place_foreign_rows(num_rows, random);
    return;
  }
  const Status allocated =
      exchange.allocate_outputs(num_rows, combine_.hidden, combine_.row_type, outputs_);
  if (allocated.code() == Code::kCapacity) {  // this rank holds on to many views
    place_foreign_rows(num_rows, random);
    return;
  }
  require_ok(allocated, "allocate_outputs");
  if (!rows.empty()) std::memcpy(outputs_.data, rows.data(), rows.size());
  args_.expert_rows = outputs_.rows();
}

void CombineCall::place_foreign_rows(std::int64_t num_rows, Random& random) {
  const std::size_t row_bytes =
      static_cast<std::size_t>(combine_.hidden) * element_bytes(combine_.row_type);
  const std::size_t pitch =
      row_bytes + (random.one_in(2) ? 0 : random.between(1, 9) * element_bytes(combine_.row_type));
  foreign_ = with_pitch(combine_.outputs[rank_].expert_rows, num_rows, row_bytes, pitch);
  args_.expert_rows.data = foreign_.data();
  args_.expert_rows.pitch_bytes = static_cast<std::int64_t>(pitch);
}

void CombineCall::check(const std::string& what) const {
  const internal::RankCombined& expected = combine_.expected[rank_];
  const std::size_t row_bytes =
      static_cast<std::size_t>(combine_.hidden) * element_bytes(args_.out_dtype);
  for (std::int64_t token = 0; token < num_tokens_; ++token) {
    require_same_bytes(&out_[token * out_pitch_], &expected.out[token * row_bytes], row_bytes,
                       what + ": out of token " + std::to_string(token));
  }
  std::vector<std::byte> guarded =
      with_pitch(expected.out, num_tokens_, row_bytes, static_cast<std::size_t>(out_pitch_));
  guarded.resize(out_.size(), kGuard);
  require_same_bytes(out_.data(), guarded.data(), out_.size(),
                     what + ": bytes beside the rows of out");
  if (args_.out_topk_weights == nullptr) return;
  std::vector<float> home = expected.out_topk_weights;
  home.push_back(-77.0F);
  require_same_bytes(topk_weights_home_.data(), home.data(), home.size() * sizeof(float),
                     what + ": out_topk_weights");
}

void check_received(const Scenario& scenario, const Round& round, int rank,
                    const Received& received, const std::string& what) {
  const internal::RankReceived& expected = round.expected[rank];
  const Handle& handle = received.handle;
  const ExchangeConfig& config = scenario.config;
  require(received.num_rows == expected.num_rows && handle.num_rows() == expected.num_rows,
          what + ": " + std::to_string(received.num_rows) + " rows instead of " +
              std::to_string(expected.num_rows));
  require(received.hidden == config.hidden && received.dtype == config.dtype,
          what + ": other hidden or dtype");
  require(handle.num_tokens() == round.inputs[rank].num_tokens, what + ": handle has another T");
  require_equal<std::int64_t>(handle.tokens_per_expert(), expected.tokens_per_expert,
                              what + ": tokens_per_expert");
  require_equal<std::int64_t>(handle.aligned_tokens_per_expert(),
                              expected.aligned_tokens_per_expert,
                              what + ": aligned_tokens_per_expert");
  require_equal<std::int64_t>(handle.expert_offsets(), expected.expert_offsets,
                              what + ": expert_offsets");
  require_equal<std::int64_t>(handle.running_counts(), expected.running_counts,
                              what + ": running_counts");
  require_equal<std::int64_t>(handle.running_rows_per_rank(), expected.running_rows_per_rank,
                              what + ": running_rows_per_rank");
  require(received.sources.size() == expected.sources.size(), what + ": number of sources");
  require_equal<std::int32_t>(received.topk_ids, expected.topk_ids, what + ": topk_ids");
  require(received.weights.size() == expected.weights.size(),
          what + ": " + std::to_string(received.weights.size()) + " weights instead of " +
              std::to_string(expected.weights.size()));
  const std::size_t row_bytes =
      static_cast<std::size_t>(config.hidden) * element_bytes(config.dtype);
  const std::size_t weights_of_row =
      expected.num_rows == 0
          ? 0
          : expected.weights.size() / static_cast<std::size_t>(expected.num_rows);
  for (std::int64_t row = 0; row < expected.num_rows; ++row) {
    const std::string where = what + ": row " + std::to_string(row);
    const bool gap = expected.row_valid[row] == 0;
    if (gap && config.layout == Layout::kPadded && !config.zero_gaps)
      continue;  // padding is undefined
    require_equal<std::int32_t>(received.sources.subspan(row * 3, 3),
                                std::span(expected.sources).subspan(row * 3, 3),
                                where + ": source");
    require_same_bytes(received.weights.data() + row * weights_of_row,
                       expected.weights.data() + row * weights_of_row,
                       weights_of_row * sizeof(float), where + ": weights");
    if (gap && !config.zero_gaps) continue;
    const auto* const seen = static_cast<const std::byte*>(received.data) + row * row_bytes;
    require_same_bytes(seen, &expected.rows[row * row_bytes], row_bytes, where);
  }
}

void play(Exchange& exchange, int rank, const Scenario& scenario, const PlayOptions& options) {
  Player(exchange, rank, scenario, options).play();
}

void play(Group& group, const Scenario& scenario, const PlayOptions& options) {
  Exchange exchange(group, scenario.config);
  play(exchange, group.rank(), scenario, options);
}

void run_scenario(Mode mode, const Scenario& scenario, const PlayOptions& options) {
  GroupOptions group_options;
  group_options.deadline = std::chrono::seconds(60);
  run_ranks(
      mode, scenario.num_ranks, [&](Group group) { play(group, scenario, options); },
      scenario.describe() + " " + mode_name(mode), group_options);
}

}  // namespace ferry::test
