#include "cuda/route.h"

#include <atomic>

#include "base/check.h"
#include "base/round_up.h"
#include "cuda/memory.h"

namespace ferry::internal {

namespace {

template <typename T>
T* take_from(std::byte*& at, std::int64_t count) {
  T* part = reinterpret_cast<T*>(at);
  at += round_up(static_cast<std::size_t>(count) * sizeof(T), std::size_t{16});
  return part;
}

// Assigns the parts of the memory that begins at `at`. Returns the end.
std::byte* lay_out(const CudaShape& shape, std::int64_t entries, int num_local, std::byte* at,
                   CudaRouteView& view) {
  view.refs = take_from<CudaRef>(at, entries);
  view.experts = take_from<std::int32_t>(at, entries);
  CudaCounts& counts = view.counts;
  counts.tokens_per_expert = take_from<std::int64_t>(at, num_local);
  counts.aligned_tokens_per_expert = take_from<std::int64_t>(at, num_local);
  counts.expert_offsets = take_from<std::int64_t>(at, num_local + 1);
  counts.running_counts = take_from<std::int64_t>(at, std::int64_t{num_local} * shape.num_ranks);
  counts.running_rows_per_rank = take_from<std::int64_t>(at, shape.num_ranks);
  counts.num_rows = take_from<std::int64_t>(at, 1);
  return at;
}

}  // namespace

bool CudaRoute::known() const noexcept {
  if (ticket == 0) return false;
  // Acquire: the counts that the device wrote before it raised the ticket. Partner: report_to_host
  // (dispatch_kernels.cu).
  return std::atomic_ref(view.host->ticket).load(std::memory_order_acquire) == ticket;
}

CudaRoutePool::CudaRoutePool(const CudaShape& shape, std::int64_t max_tokens, int num_local,
                             std::uint64_t exchange)
    : shape_(shape), max_tokens_(max_tokens), num_local_(num_local), exchange_(exchange) {}

std::unique_ptr<CudaRoute> CudaRoutePool::make() const {
  auto route = std::make_unique<CudaRoute>();
  route->exchange = exchange_, route->num_local = num_local_, route->alignment = shape_.alignment;
  const std::int64_t entries = max_tokens_ * shape_.top_k;
  CudaRouteView& view = route->view;
  const std::byte* end = lay_out(shape_, entries, num_local_, nullptr, view);
  route->device = device_memory(reinterpret_cast<std::size_t>(end));
  const std::byte* const last = lay_out(shape_, entries, num_local_, route->device.get(), view);
  FERRY_CHECK(last - route->device.get(), ==, reinterpret_cast<std::ptrdiff_t>(end));
  route->mapped = mapped_memory(sizeof(CudaHostCounts) + num_local_ * sizeof(std::int64_t));
  view.host = reinterpret_cast<CudaHostCounts*>(route->mapped.get());
  view.host_experts = reinterpret_cast<std::int64_t*>(view.host + 1);
  return route;
}

void CudaRoutePool::reserve(int routes) {
  for (int i = 0; i < routes; ++i) routes_->put_new(make());
}

std::shared_ptr<CudaRoute> CudaRoutePool::take() {
  return routes_->take([this] { return make(); });
}

}  // namespace ferry::internal
