// The opaque objects of the C ABI: each holds an object of the C++ API and lies in memory of its
// allocator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "ferry/collectives.h"
#include "ferry/exchange.h"
#include "ferry/ferry.h"
#include "ferry/group.h"

namespace ferry::capi {

// A checked ferry_allocator; malloc and free by default.
class Allocator {
 public:
  Allocator() noexcept;
  explicit Allocator(const ferry_allocator& given);  // throws Error unless both functions are there

  void* allocate(std::size_t bytes) const;  // throws Error(kSystem) without memory
  void release(void* memory) const noexcept { release_(memory, context_); }

 private:
  void* (*allocate_)(std::size_t bytes, void* context);
  void (*release_)(void* memory, void* context);
  void* context_ = nullptr;
};

// Makes an object in `memory` of the allocator. The memory is released if the constructor throws.
template <typename Object, typename... Arguments>
Object* make_in(void* memory, const Allocator& allocator, Arguments&&... arguments) {
  static_assert(alignof(Object) <= alignof(std::max_align_t));
  try {
    return new (memory) Object{allocator, std::forward<Arguments>(arguments)...};
  } catch (...) {
    allocator.release(memory);
    throw;
  }
}

template <typename Object, typename... Arguments>
Object* make(const Allocator& allocator, Arguments&&... arguments) {
  return make_in<Object>(allocator.allocate(sizeof(Object)), allocator,
                         std::forward<Arguments>(arguments)...);
}

template <typename Object>
void destroy(Object* object) noexcept {
  if (!object) return;
  const Allocator allocator = object->allocator;
  object->~Object();
  allocator.release(object);
}

struct Destroy {
  template <typename Object>
  void operator()(Object* object) const noexcept {
    destroy(object);
  }
};
// An object that the caller does not own yet.
template <typename Object>
using Owned = std::unique_ptr<Object, Destroy>;

// Replicas::instances as the C ABI shows them.
struct FlatReplicas {
  explicit FlatReplicas(const Replicas& replicas);
  std::vector<std::int64_t> offsets;
  std::vector<std::int32_t> instances;
};

// CombineArgs::dispatched is a pointer; the arguments that it points to stay until combine_recv.
struct KeptDispatch {
  std::uint64_t operation;
  std::unique_ptr<const DispatchArgs> args;
};

}  // namespace ferry::capi

// NOLINTBEGIN(readability-identifier-naming)

struct ferry_group {
  ferry::capi::Allocator allocator;
  ferry::Group group = {};
};

struct ferry_exchange {
  ferry_exchange(const ferry::capi::Allocator& allocator, const ferry::Group& group,
                 const ferry::ExchangeConfig& config, bool joins)
      : allocator(allocator),
        rank(group.rank()),
        exchange(joins ? ferry::Exchange::join(group, config) : ferry::Exchange(group, config)),
        replicas(exchange.config().replicas) {}

  ferry::capi::Allocator allocator;
  int rank;
  std::vector<ferry::capi::KeptDispatch> kept = {};  // before `exchange`, which may read them
  ferry::Exchange exchange;
  ferry::capi::FlatReplicas replicas;
};

struct ferry_collectives {
  ferry_collectives(const ferry::capi::Allocator& allocator, const ferry::Group& group,
                    const ferry::CollectivesOptions& options)
      : allocator(allocator), rank(group.rank()), size(group.size()), collectives(group, options) {}

  ferry::capi::Allocator allocator;
  int rank, size;
  ferry::Collectives collectives;
};

struct ferry_memory {
  ferry::capi::Allocator allocator;
  std::shared_ptr<void> data = {};
};

struct ferry_handle {
  ferry::capi::Allocator allocator;
  ferry::Handle handle = {};
};

// NOLINTEND(readability-identifier-naming)

namespace ferry::capi {

// The objects behind ferry_received.owner and ferry_output_rows.owner.
struct ReceivedOwner {
  Allocator allocator;
  Received received = {};
  ferry_handle handle = {allocator};
};

struct OutputsOwner {
  Allocator allocator;
  OutputRows rows = {};
};

}  // namespace ferry::capi
