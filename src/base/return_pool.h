// ReturnPool: objects that are made once and used again, such as routes with their memory. An
// object returns to the pool when its last shared_ptr ends, on any thread, and also after the owner
// of the pool has ended. The pool keeps as many objects as were ever in use at the same time.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace ferry::internal {

template <typename T>
class ReturnPool : public std::enable_shared_from_this<ReturnPool<T>> {
 public:
  // A free object as its last user left it, or else a new one: make() returns a unique_ptr.
  template <typename Make>
  std::shared_ptr<T> take(const Make& make) {
    std::unique_ptr<T> object = take_free();
    if (!object) {
      object = make();
      make_room();
    }
    return {object.release(),
            [pool = this->shared_from_this()](T* returned) { pool->put(returned); }};
  }

  // Adds a free object.
  void put_new(std::unique_ptr<T> object) {
    make_room();
    put(object.release());
  }

 private:
  std::unique_ptr<T> take_free() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return nullptr;
    std::unique_ptr<T> object = std::move(free_.back());
    free_.pop_back();
    return object;
  }

  // Counts a new object, so that there is room for it in put().
  void make_room() {
    const std::lock_guard lock(mutex_);
    free_.reserve(++made_);
  }

  void put(T* object) noexcept {
    const std::lock_guard lock(mutex_);
    free_.emplace_back(object);
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> free_;
  std::size_t made_ = 0;  // objects that exist
};

}  // namespace ferry::internal
