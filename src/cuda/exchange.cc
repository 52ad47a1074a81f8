#include "cuda/exchange.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "base/check.h"
#include "base/round_up.h"
#include "cuda/kernels.h"
#include "cuda/memory.h"
#include "cuda/peers.h"
#include "cuda/report.h"
#include "cuda/window.h"
#include "exchange/setup/agreement.h"
#include "exchange/setup/configuration.h"
#include "routing/active_set.h"

namespace ferry::internal {

namespace {

constexpr int kRoutesAhead = 8;  // usually at most so many handles are alive at a time

void check_device(int device) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) cudaGetLastError(), count = 0;
  if (device < 0 || device >= count)
    throw Error(Code::kInvalidArgument,
                fmt::format("device is {}, this machine has {} CUDA devices", device, count));
}

std::uint64_t next_exchange() {
  static std::atomic<std::uint64_t> count{0};
  return count.fetch_add(1, std::memory_order_relaxed) + 1;  // only distinct numbers are needed
}

}  // namespace

CudaExchange::CudaExchange(std::shared_ptr<GroupState> group, const ExchangeConfig& config,
                           int device)
    : group_(std::move(group)), device_(device) {
  GroupState& all = usable(group_);
  const Deadline by = all.deadline();
  make_alike(all, by, [&] {
    if (!all.one_node())
      throw Error(Code::kInvalidArgument,
                  fmt::format("an exchange of CUDA ranks needs a group on one node, this "
                              "one has {}",
                              all.topology().num_nodes()));
    if (const std::uint64_t view = all.view().number; view > 1)
      throw Error(Code::kInvalidArgument,
                  fmt::format("this is view {} of the group: exchanges of CUDA ranks are made in "
                              "view 1 only; make a new group for others",
                              view));
    if (all.survival().waited())
      throw Error(Code::kInvalidArgument,
                  "an exchange of CUDA ranks needs all ranks of the group, which began with some");
    config_ = cuda_config(config, all.size());
    check_device(device);
    return "memory is of CUDA devices\n" + config_text(config_);
  });
  const OnDevice on(device_);
  make_alike(all, by, [&] {
    take_memory();
    return std::string();
  });
  CudaPeers peers = share_windows(all, memory_.window, order_, by);
  memory_.windows = std::move(peers.windows), common_.all_near = peers.all_near;
  make_alike(all, by, [&] {
    memory_.of_windows = device_memory(memory_.windows.size() * sizeof(std::byte*));
    std::vector<std::byte*> windows;
    for (const auto& window : memory_.windows) windows.push_back(window.get());
    FERRY_CHECK(std::ssize(windows), ==, all.size());
    FERRY_CHECK(windows[all.rank()], ==, common_.mine);
    cuda_check(cudaMemcpy(memory_.of_windows.get(), windows.data(),
                          windows.size() * sizeof(std::byte*), cudaMemcpyHostToDevice),
               "copying the addresses of the windows to a device");
    load_place_kernels(), load_dispatch_kernels(), load_combine_kernels();
    cuda_check(cudaStreamSynchronize(nullptr), "preparing device memory");
    common_.windows = reinterpret_cast<std::byte* const*>(memory_.of_windows.get());
    return std::string();
  });
  group_->survival().hold(1);
  watcher_.thread = std::thread([this] { watch(); });
}

void CudaExchange::take_memory() {
  const ActiveSet everybody(config_, group_->size(), group_->rank(), {});
  const ExpertMap& map = everybody.map;
  cuda_check(cudaDeviceGetAttribute(&processors_, cudaDevAttrMultiProcessorCount, device_),
             "reading the properties of a device");
  common_.shape = cuda_shape(config_, map, group_->rank());
  common_.at = cuda_window(config_, common_.shape);
  num_local_ = map.num_local(group_->rank());
  buffer_rows_ = common_.shape.layout == Layout::kPadded ? num_local_ * config_.expert_capacity
                                                         : common_.shape.row_capacity;
  memory_.window = device_memory(common_.at.bytes);
  common_.mine = memory_.window.get();

  std::vector<std::int32_t> ints;  // owner, local, first_of, experts_of
  for (int expert = 0; expert < map.num_columns(); ++expert) ints.push_back(map.owner(expert));
  for (int expert = 0; expert < map.num_columns(); ++expert) ints.push_back(map.local(expert));
  std::vector<std::int32_t> first = {0}, experts;
  for (int rank = 0; rank < map.num_members(); ++rank) {
    const auto of_rank = map.columns_of(rank);
    experts.insert(experts.end(), of_rank.begin(), of_rank.end());
    first.push_back(static_cast<std::int32_t>(experts.size()));
  }
  FERRY_CHECK(std::ssize(first), ==, group_->size() + 1);
  FERRY_CHECK(std::ssize(experts), ==, map.num_columns());
  FERRY_CHECK(num_local_, ==, first[group_->rank() + 1] - first[group_->rank()]);
  ints.insert(ints.end(), first.begin(), first.end());
  ints.insert(ints.end(), experts.begin(), experts.end());
  memory_.map = device_memory(ints.size() * sizeof(std::int32_t));
  cuda_check(cudaMemcpy(memory_.map.get(), ints.data(), ints.size() * sizeof(std::int32_t),
                        cudaMemcpyHostToDevice),
             "copying the owners of the experts to a device");
  CudaShape& shape = common_.shape;
  shape.experts.owner = reinterpret_cast<const std::int32_t*>(memory_.map.get());
  shape.experts.local = shape.experts.owner + map.num_columns();
  shape.experts.first_of = shape.experts.local + map.num_columns();
  shape.experts.experts_of = shape.experts.first_of + first.size();

  take_scratch();
  memory_.mapped = mapped_memory(sizeof(CudaReport) + 2 * sizeof(std::int32_t));
  common_.report = reinterpret_cast<CudaReport*>(memory_.mapped.get());
  common_.host_abort = reinterpret_cast<const volatile std::int32_t*>(common_.report + 1);
  common_.deadline_ns = group_->default_deadline().count();
  routes_ = std::make_shared<CudaRoutePool>(shape, config_.max_tokens, num_local_, next_exchange());
  routes_->reserve(kRoutesAhead);
  cuda_check(cudaEventCreateWithFlags(&issued_.last, cudaEventDisableTiming), "making an event");
}

// Allocates 8 bytes for each entry of this rank, and 4 for each column of each chunk of entries.
void CudaExchange::take_scratch() {
  const CudaShape& shape = common_.shape;
  const std::int64_t entries = config_.max_tokens * shape.top_k, columns = shape.count_row_size();
  const std::int64_t chunks = num_chunks(config_.max_tokens, shape.top_k);
  const std::size_t state = round_up(sizeof(CudaState), std::size_t{256});
  memory_.scratch =
      device_memory(state + sizeof(std::int32_t) * (2 * entries + (chunks + 2) * columns));
  common_.state = reinterpret_cast<CudaState*>(memory_.scratch.get());
  cuda_check(cudaMemset(&common_.state->bad_entry, 0xff, sizeof common_.state->bad_entry),
             "preparing device memory");
  common_.keys = reinterpret_cast<std::int32_t*>(memory_.scratch.get() + state);
  common_.ranks_in_chunk = common_.keys + entries;
  common_.all = common_.ranks_in_chunk + entries;
  common_.next = common_.all + columns;
  common_.chunk_counts = common_.next + columns;
}

// Waits until the issued kernels end, so that their flags are raised before the flag that this rank
// has departed.
CudaExchange::~CudaExchange() {
  {
    const std::lock_guard lock(watcher_.mutex);
    watcher_.stop = true;
  }
  watcher_.wake.notify_all();
  if (watcher_.thread.joinable()) watcher_.thread.join();
  group_->survival().hold(-1);
  int before = 0;
  cudaGetDevice(&before);
  cudaSetDevice(device_);
  cudaStream_t stream = nullptr;
  if (common_.windows != nullptr && cudaEventSynchronize(issued_.last) == cudaSuccess &&
      cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess) {
    launch_leave(common_, stream);
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
  }
  order_.leave();  // after the kernel that sets the flag on the device
  if (issued_.last != nullptr) cudaEventDestroy(issued_.last);
  memory_ = {};
  routes_.reset();
  cudaSetDevice(before);
}

void CudaExchange::watch() {
  constexpr auto kEvery = std::chrono::milliseconds(20);
  volatile std::int32_t* to_kernels = const_cast<volatile std::int32_t*>(common_.host_abort);
  std::unique_lock lock(watcher_.mutex);
  while (!watcher_.wake.wait_for(lock, kEvery, [this] { return watcher_.stop; })) {
    Status status = group_->death_here();
    if (status.ok()) status = group_->verdict();
    if (status.ok() || status.code() == Code::kClosed) continue;
    to_kernels[1] = status.culprit();
    std::atomic_thread_fence(std::memory_order_release);  // the code is read first (await_flag)
    to_kernels[0] = static_cast<std::int32_t>(Code::kPeerLost);
    return;
  }
}

Status CudaExchange::broken() const {
  return {Code::kBroken, "this exchange is broken: " + broken_.message(), broken_.culprit()};
}

CudaExchange::Call CudaExchange::call_on(cudaStream_t stream) const {
  const bool capturing = is_capturing(stream);
  return {stream, capturing, order_.has_others() && !capturing};
}

Status CudaExchange::await_issued(CudaPhase phase, const Call& call) {
  if (!call.in_steps) return {};
  const int late = order_.await(phase, group_->default_deadline());
  if (late < 0) return {};
  static_cast<void>(ended(call));
  broken_ = {
      Code::kTimeout,
      fmt::format("gave up after {:.3g} s waiting for {} of rank {}, which has not issued them",
                  1e-9 * static_cast<double>(common_.deadline_ns), phase_name(phase), late),
      late};
  return broken_;
}

// Records the end of the kernels that were issued so far; the destructor waits for it.
Status CudaExchange::ended(const Call& call) {
  cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess && !call.capturing) error = cudaEventRecord(issued_.last, call.stream);
  if (error == cudaSuccess) return {};
  broken_ = {Code::kSystem, fmt::format("the device refused work: {} ({})",
                                        cudaGetErrorString(error), cudaGetErrorName(error))};
  return broken_;
}

void* CudaExchange::outputs() const {
  return common_.mine + common_.at.first_output +
         issued_.combines % config_.depth * common_.at.output_bytes;
}

Status CudaExchange::check() {
  if (!broken_.ok()) return broken();
  // Acquire: partner is send_report (flags.cuh).
  const std::uint64_t sequence =
      std::atomic_ref(common_.report->sequence).load(std::memory_order_acquire);
  if (sequence == issued_.reports) return {};
  issued_.reports = sequence;
  Status status = status_of(*common_.report, common_.shape, common_.deadline_ns);
  if (!status.group_usable()) broken_ = status;
  return status;
}

Status CudaExchange::finish() {
  const OnDevice on(device_);
  const cudaError_t error = cudaEventSynchronize(issued_.last);
  if (error != cudaSuccess && broken_.ok())
    broken_ = {Code::kSystem, fmt::format("the device failed: {}", cudaGetErrorString(error))};
  return check();
}

}  // namespace ferry::internal
