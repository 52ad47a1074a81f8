// The schedule of a layer: the order of the calls of the exchange, and the experts that run between
// two of them. Each expert that received rows runs once per batch.
#include "ferry/layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <future>
#include <new>
#include <thread>

#include "base/check.h"
#include "base/out_of_memory.h"
#include "exchange/public_calls.h"
#include "exchange/setup/setup.h"

namespace ferry {

namespace {

// The longest wait for sources that send at about the same time as this rank. Rows between hosts
// take longer, so experts that are ready compute in the meantime.
constexpr std::chrono::nanoseconds kMostInStep = std::chrono::milliseconds(1);

// The tokens that pass through the layer together: all of them, or one half.
struct Batch {
  std::int64_t first_token = 0;
  std::int64_t num_tokens = 0;
  std::int64_t num_ids = 0;  // tokens that have ids; dispatch refuses unless it is num_tokens
  Operation dispatch = {}, combine = {};
  Received received = {};
  OutputRows outputs = {};
  std::shared_ptr<const void> pin = {};  // keeps the memory of `received` and `outputs`
  std::vector<bool> done = {};           // [L] the expert has run, or has no rows
  Status failed = {};                    // why the experts of this rank have no result
  std::chrono::nanoseconds send_time = {};
};

class Run {
 public:
  Run(Exchange& exchange, const LayerArgs& args, const Experts& experts)
      : exchange_(exchange), args_(args), experts_(experts) {}

  Status in_one();
  Status in_two();

 private:
  Batch batch(std::int64_t first_token, std::int64_t num_tokens) const;
  Status send(Batch& batch) const;
  void prepare(Batch& batch) const;
  void allocate(Batch& batch) const;
  Status allocate_outside(Batch& batch) const;
  Status wait_for_sources_in_step(const Batch& batch) const;
  Status compute_as_rows_come(Batch& batch) const;
  void compute(Batch& batch, const std::vector<bool>& ready) const;
  Status called(const std::vector<ExpertRows>& calls) const;
  ExpertRows rows_of(const Batch& batch, int expert) const;
  Status publish(Batch& batch) const;

  Exchange& exchange_;
  const LayerArgs& args_;
  const Experts& experts_;
};

Batch Run::batch(std::int64_t first_token, std::int64_t num_tokens) const {
  const std::int64_t ids = args_.topk_ids.num_tokens;
  return {.first_token = first_token,
          .num_tokens = num_tokens,
          .num_ids = ids == args_.tokens.num_rows ? num_tokens : ids};
}

// `failed` is the failure of a batch outside the calls that returned `status`. If that failure
// broke the group, its text names the culprit; the status of later calls does not.
Status first_of(const Status& failed, const Status& status) {
  return failed.group_usable() ? status : failed;
}

Status Run::in_one() {
  Batch all = batch(0, args_.tokens.num_rows);
  Status status = send(all);
  if (status.ok()) status = compute_as_rows_come(all);
  if (status.ok()) status = publish(all);
  if (status.ok()) status = exchange_.combine_recv(all.combine);
  return first_of(all.failed, status);
}

Status Run::in_two() {
  const std::int64_t half = (args_.tokens.num_rows + 1) / 2;
  Batch first = batch(0, half), second = batch(half, args_.tokens.num_rows - half);
  Status status = send(first);
  if (status.ok()) status = exchange_.dispatch_recv(first.dispatch, first.received);
  if (!status.ok()) return status;
  prepare(first);
  // The send half of the second batch runs in a thread beside the experts of the first, since it
  // waits until its rows are sent. Only that thread uses the exchange meanwhile. Where the system
  // refuses a thread, the send half runs in get(); where it refuses memory, in the call of send()
  // after the experts.
  std::future<Status> sent;
  try {
    sent = std::async(std::launch::async | std::launch::deferred, [&] { return send(second); });
  } catch (const std::bad_alloc&) {
  }
  compute(first, {});
  status = sent.valid() ? sent.get() : send(second);
  if (status.ok()) status = publish(first);
  // The other ranks learn of the failure in combine_recv(first) at the latest, before which they
  // receive the second batch. So this rank receives that batch, too.
  if (!status.ok() && status.group_usable())
    static_cast<void>(exchange_.dispatch_recv(second.dispatch, second.received));
  if (status.ok()) status = compute_as_rows_come(second);
  if (status.ok()) status = exchange_.combine_recv(first.combine);
  if (status.ok()) status = publish(second);
  if (status.ok()) status = exchange_.combine_recv(second.combine);
  return first_of(first.failed, first_of(second.failed, status));
}

Status Run::send(Batch& batch) const {
  const Rows& tokens = args_.tokens;
  const std::int64_t id_bytes = args_.topk_ids.type == IndexType::kInt32 ? 4 : 8;
  DispatchArgs dispatch{.tokens = tokens,
                        .topk_ids = args_.topk_ids,
                        .deadline = args_.deadline,
                        .replica_table = args_.replica_table,
                        .active_ranks = args_.active_ranks};
  dispatch.tokens.data =
      static_cast<const std::byte*>(tokens.data) + batch.first_token * internal::pitch_of(tokens);
  dispatch.tokens.num_rows = batch.num_tokens;
  dispatch.topk_ids.data = static_cast<const std::byte*>(args_.topk_ids.data) +
                           batch.first_token * args_.topk_ids.top_k * id_bytes;
  dispatch.topk_ids.num_tokens = batch.num_ids;
  const auto begin = std::chrono::steady_clock::now();
  Status status = exchange_.dispatch_send(dispatch, batch.dispatch);
  batch.send_time = std::chrono::steady_clock::now() - begin;
  return status;
}

// Without memory the batch has failed: the other ranks, which count on it, are told by publish().
void Run::prepare(Batch& batch) const {
  try {
    allocate(batch);
  } catch (const std::bad_alloc&) {
    batch.failed = {Code::kCapacity, internal::kOutOfMemory};
  }
}

// Allocates the rows that the experts write, before the first expert computes.
void Run::allocate(Batch& batch) const {
  const Handle& handle = batch.received.handle;
  FERRY_CHECK(batch.done.size(), ==, 0U);   // called once per batch
  if (!handle.tokens_per_expert().empty())  // empty if this rank does not take part
    FERRY_CHECK(std::ssize(handle.tokens_per_expert()), ==, exchange_.num_local_experts());
  batch.done.resize(handle.tokens_per_expert().size());
  batch.failed = exchange_.allocate_outputs(handle.num_rows(), exchange_.config().hidden,
                                            args_.out_type, batch.outputs);
  if (batch.failed.code() == Code::kCapacity) batch.failed = allocate_outside(batch);
  batch.pin = std::make_shared<std::array<std::shared_ptr<const void>, 2>>(
      std::array{batch.received.pin, batch.outputs.pin});
  if (args_.handles != nullptr) args_.handles->push_back(handle);
}

// Allocates outputs outside the window, because too many views of the window are alive. combine
// copies the results into the window.
Status Run::allocate_outside(Batch& batch) const {
  batch.outputs.num_rows = batch.received.handle.num_rows();
  batch.outputs.hidden = exchange_.config().hidden;
  batch.outputs.dtype = args_.out_type;
  const std::int64_t bytes = batch.outputs.num_rows * internal::dense_pitch(batch.outputs.rows());
  const std::shared_ptr<std::byte[]> memory(new (std::nothrow) std::byte[bytes]);
  if (!memory) {
    return {Code::kCapacity, internal::text_of([bytes] {
              return fmt::format("layer: no memory for outputs of {} bytes", bytes);
            })};
  }
  batch.outputs.data = memory.get();
  batch.outputs.pin = memory;
  return {};
}

// Waits for the sources that send at about the same time as this rank, for at most twice as long as
// this rank's own send half took. One call of all experts costs less than several calls, and where
// ranks share a processor this rank must yield it for the others to send. A source that takes
// longer is not waited for: the ready experts start.
Status Run::wait_for_sources_in_step(const Batch& batch) const {
  const auto end = std::chrono::steady_clock::now() + std::min(2 * batch.send_time, kMostInStep);
  std::vector<bool> ready;
  Status status = exchange_.ready_experts(batch.dispatch, ready);
  while (status.ok() && std::ranges::find(ready, false) != ready.end() &&
         std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
    status = exchange_.ready_experts(batch.dispatch, ready);
  }
  return status;
}

// Runs the experts that have received all their rows first, as long as there are any, and then the
// others.
Status Run::compute_as_rows_come(Batch& batch) const {
  Status status = exchange_.dispatch_memory(batch.dispatch, batch.received);
  const bool prepared = status.ok();
  if (prepared) {
    prepare(batch);
    status = wait_for_sources_in_step(batch);
  }
  std::vector<bool> ready;
  for (std::ptrdiff_t done = -1; status.ok() && done < std::ranges::count(batch.done, true);) {
    done = std::ranges::count(batch.done, true);
    status = exchange_.ready_experts(batch.dispatch, ready);
    if (std::ranges::find(ready, true) != ready.end()) compute(batch, ready);
  }
  // kCapacity: too many views are alive, and dispatch_recv will copy the rows.
  if (!status.ok() && status.code() != Code::kCapacity) return status;
  status = exchange_.dispatch_recv(batch.dispatch, batch.received);
  if (!status.ok()) return status;
  if (!prepared) prepare(batch);
  compute(batch, {});
  FERRY_CHECK(std::ranges::count(batch.done, false), ==, 0);
  return status;
}

// Runs the ready experts that have not run; with an empty `ready`, all that have not run. A batch
// that failed has no rows for their outputs, and its experts are skipped.
void Run::compute(Batch& batch, const std::vector<bool>& ready) const {
  if (!batch.failed.ok()) return batch.done.assign(batch.done.size(), true);
  if (!ready.empty()) FERRY_CHECK(ready.size(), ==, batch.done.size());
  std::vector<ExpertRows> calls;
  try {
    for (std::size_t expert = 0; expert < batch.done.size(); ++expert) {
      if (batch.done[expert] || (!ready.empty() && !ready[expert])) continue;
      batch.done[expert] = true;
      if (batch.received.handle.tokens_per_expert()[expert] > 0)
        calls.push_back(rows_of(batch, static_cast<int>(expert)));
    }
  } catch (const std::bad_alloc&) {
    batch.failed = {Code::kCapacity, internal::kOutOfMemory};
    return batch.done.assign(batch.done.size(), true);
  }
  if (!calls.empty()) batch.failed = called(calls);
}

// Runs the experts. An error if they throw.
Status Run::called(const std::vector<ExpertRows>& calls) const {
  std::string why;
  try {
    experts_(calls);
    return {};
  } catch (const std::exception& error) {
    why = internal::text_of(
        [&] { return fmt::format("layer: the experts threw: {}", error.what()); });
  } catch (...) {
    why = internal::text_of(
        [] { return "layer: the experts threw an exception of an unknown type"; });
  }
  return {Code::kInvalidArgument, std::move(why)};
}

ExpertRows Run::rows_of(const Batch& batch, int expert) const {
  const Received& received = batch.received;
  FERRY_CHECK(received.handle.expert_offsets().size(), ==, batch.done.size() + 1);
  const std::int64_t first = received.handle.expert_offsets()[expert];
  FERRY_CHECK(first + received.handle.tokens_per_expert()[expert], <=, received.num_rows);
  FERRY_CHECK(received.num_rows, ==, batch.outputs.num_rows);
  const auto part = [&](Rows rows) {
    rows.data = static_cast<const std::byte*>(rows.data) + first * internal::dense_pitch(rows);
    rows.num_rows = received.handle.tokens_per_expert()[expert];
    return rows;
  };
  ExpertRows rows{.expert = expert,
                  .rows = part(received.rows()),
                  .scales = received.scales,
                  .out = static_cast<std::byte*>(batch.outputs.data) +
                         first * internal::dense_pitch(batch.outputs.rows()),
                  .pin = batch.pin};
  if (rows.scales.data)
    rows.scales.data =
        static_cast<const std::byte*>(rows.scales.data) + first * rows.scales.row_stride;
  return rows;
}

// The send half of combine. If the experts of this batch failed, or there was no memory for their
// outputs, it refuses the combine, which then fails on all ranks.
Status Run::publish(Batch& batch) const {
  FERRY_CHECK(std::ranges::count(batch.done, false), ==, 0);
  if (!batch.failed.ok()) return exchange_.refuse_combine(batch.failed, args_.active_ranks);
  const ExchangeConfig& config = exchange_.config();
  const std::int64_t row_bytes = internal::dense_pitch(batch.outputs.rows());
  return exchange_.combine_send(
      {.handle = batch.received.handle,
       .expert_rows = batch.outputs.rows(),
       .topk_weights =
           args_.topk_weights ? args_.topk_weights + batch.first_token * config.top_k : nullptr,
       .out = static_cast<std::byte*>(args_.out) + batch.first_token * row_bytes,
       .out_dtype = args_.out_type,
       .deadline = args_.deadline},
      batch.combine);
}

Status check_layout(const ExchangeConfig& config) {
  if (config.layout == Layout::kExpertMajor) return {};
  return {Code::kInvalidArgument,
          fmt::format("a layer needs the layout expert_major, not {}", layout_name(config.layout))};
}

}  // namespace

Layer::Layer(const Group& group, const ExchangeConfig& config) {
  const Status layout = check_layout(config);
  if (!layout.ok()) Exchange::refuse(group, {layout.code(), layout.message(), group.rank()});
  exchange_ = Exchange(group, config);
}

Layer::Layer(Exchange exchange) : exchange_(std::move(exchange)) {
  require_ok(check_layout(exchange_.config()));
}

Status Layer::run(const LayerArgs& args, const Experts& experts) noexcept {
  return internal::caught([&] {
    if (args.handles != nullptr) args.handles->clear();
    if (!args.two_batches) return Run(exchange_, args, experts).in_one();
    const int depth = exchange_.config().depth;
    if (depth >= 2) return Run(exchange_, args, experts).in_two();
    const Status why(Code::kInvalidArgument, internal::text_of([depth] {
                       return fmt::format("layer: two_batches needs an exchange of depth 2, not {}",
                                          depth);
                     }));
    return exchange_.refuse_dispatch(why, args.active_ranks);
  });
}

}  // namespace ferry
