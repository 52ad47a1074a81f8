// CudaRoute: the inside of a cuda::Handle. Its memory is from a pool of the exchange, to which it
// returns with the destruction of the last handle.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/return_pool.h"
#include "cuda/views.h"

namespace ferry::internal {

struct CudaRoute {
  std::uint64_t exchange = 0;  // the number of the exchange that made it
  std::uint64_t ticket = 0;    // CudaHostCounts::ticket has this value once the host may read
  int num_local = 0;
  std::int64_t alignment = 1;
  CudaRouteView view = {};
  std::vector<std::int64_t> aligned = {};  // [L], filled when the host has the counts
  std::shared_ptr<std::byte> device = {}, mapped = {};

  bool known() const noexcept;  // the host may read view.host
};

class CudaRoutePool {
 public:
  CudaRoutePool(const CudaShape& shape, std::int64_t max_tokens, int num_local,
                std::uint64_t exchange);
  // Allocates `routes` routes in advance, because a graph capture allows no allocation.
  void reserve(int routes);
  std::shared_ptr<CudaRoute> take();
  std::uint64_t exchange() const noexcept { return exchange_; }

 private:
  std::unique_ptr<CudaRoute> make() const;

  CudaShape shape_;
  std::int64_t max_tokens_;
  int num_local_;
  std::uint64_t exchange_;
  std::shared_ptr<ReturnPool<CudaRoute>> routes_ = std::make_shared<ReturnPool<CudaRoute>>();
};

}  // namespace ferry::internal
