#include "aclnn/runtime.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "aclnn/two_stage.h"

namespace ferry::aclnn {

namespace {

thread_local std::string recent_message;
thread_local std::int32_t device = 0;
// Written by aclInit and aclFinalize only; no other memory is ordered by it.
std::atomic<bool> initialised = false;

// The streams of this process and their devices. A stream that another thread waits for ends after
// that wait. Never destroyed, as a stream may still work when the process ends.
struct Streams {
  std::mutex mutex;
  std::map<aclrtStream, std::pair<std::int32_t, std::shared_ptr<Stream>>> alive;
};
Streams& streams() {
  static Streams& all = *new Streams;
  return all;
}

constexpr std::size_t kAlignment = 64;
constexpr std::uint32_t kLeastDevices = 16;  // CANN's sample programs use that many

int allocate(const char* name, void** pointer, std::size_t size) {
  if (pointer == nullptr || size == 0)
    return fail(ACL_ERROR_INVALID_PARAM,
                fmt::format("{}: {} bytes at {}, need 1 or more and an address", name, size,
                            static_cast<const void*>(pointer)));
  *pointer =
      size > SIZE_MAX - kAlignment
          ? nullptr
          : std::aligned_alloc(kAlignment, (size + kAlignment - 1) / kAlignment * kAlignment);
  return *pointer ? ACL_SUCCESS
                  : fail(ACL_ERROR_RT_MEMORY_ALLOCATION,
                         fmt::format("{}: no memory for {} bytes", name, size));
}

int check_copy(const char* name, const void* to, std::size_t room, std::size_t count) {
  if (to != nullptr && count <= room) return ACL_SUCCESS;
  return fail(ACL_ERROR_INVALID_PARAM,
              fmt::format("{}: {} bytes into {} at {}", name, count, room, to));
}

int set_device(const char* name, std::int32_t id) {
  if (id < 0)
    return fail(ACL_ERROR_INVALID_DEVICE, fmt::format("{}: device {}, need 0 or more", name, id));
  device = id;
  return ACL_SUCCESS;
}

int check_source(const char* name, const void* from) {
  return from ? ACL_SUCCESS : fail(ACL_ERROR_INVALID_PARAM, fmt::format("{}: from null", name));
}

int synchronize(const char* name, aclrtStream stream, std::int32_t timeout) {
  if (stream == nullptr) return fail(ACL_ERROR_INVALID_PARAM, fmt::format("{}: null stream", name));
  const Outcome outcome = static_cast<Stream*>(stream)->synchronize(timeout);
  return outcome.code == ACL_SUCCESS ? ACL_SUCCESS : fail(outcome.code, outcome.message);
}

}  // namespace

int fail(int code, const std::string& message) {
  recent_message = message;
  return code;
}

std::int32_t current_device() { return device; }

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

void Stream::enqueue(std::function<Outcome()> work) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  changed_.notify_all();
}

Outcome Stream::synchronize(std::int32_t timeout_ms) {
  std::unique_lock lock(mutex_);
  const auto idle = [this] { return queue_.empty(); };
  if (timeout_ms < 0) {
    wait_until(changed_, lock, idle);  // each operation ends at its group's deadline
  } else if (!changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), idle)) {
    return {ACL_ERROR_RT_STREAM_SYNC_TIMEOUT,
            fmt::format("after {} ms, {} operations of the stream are not finished", timeout_ms,
                        queue_.size())};
  }
  return std::exchange(failed_, {});
}

void Stream::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wait_until(changed_, lock, [this] { return closing_ || !queue_.empty(); });
    if (queue_.empty()) return;
    std::function<Outcome()>& next = queue_.front();
    lock.unlock();
    Outcome outcome = next();
    lock.lock();
    queue_.pop_front();
    if (failed_.code == ACL_SUCCESS) failed_ = std::move(outcome);
    changed_.notify_all();
  }
}

}  // namespace ferry::aclnn

using namespace ferry::aclnn;

extern "C" {

aclError aclInit(const char*) {
  // Relaxed: see `initialised`.
  return initialised.exchange(true, std::memory_order_relaxed)
             ? fail(ACL_ERROR_REPEAT_INITIALIZE, "aclInit was called already")
             : ACL_SUCCESS;
}
aclError aclFinalize() {
  free_executors();
  initialised.store(false, std::memory_order_relaxed);  // see `initialised`
  return ACL_SUCCESS;
}
const char* aclGetRecentErrMsg() { return recent_message.c_str(); }

aclError aclrtSetDevice(int32_t id) { return set_device("aclrtSetDevice", id); }
aclError aclrtResetDevice(int32_t) {
  device = 0;
  return ACL_SUCCESS;
}
aclError aclrtGetDevice(int32_t* id) {
  if (id == nullptr) return fail(ACL_ERROR_INVALID_PARAM, "aclrtGetDevice: null");
  *id = device;
  return ACL_SUCCESS;
}
aclError aclrtGetDeviceCount(uint32_t* count) {
  if (count == nullptr) return fail(ACL_ERROR_INVALID_PARAM, "aclrtGetDeviceCount: null");
  *count = std::max(kLeastDevices, std::thread::hardware_concurrency());
  return ACL_SUCCESS;
}

// A context is its device.
aclError aclrtCreateContext(aclrtContext* context, int32_t id) {
  if (context == nullptr) return fail(ACL_ERROR_INVALID_PARAM, "aclrtCreateContext: null");
  if (const int code = set_device("aclrtCreateContext", id); code != ACL_SUCCESS) return code;
  *context = new std::int32_t(id);
  return ACL_SUCCESS;
}
aclError aclrtSetCurrentContext(aclrtContext context) {
  if (context == nullptr) return fail(ACL_ERROR_INVALID_PARAM, "aclrtSetCurrentContext: null");
  device = *static_cast<std::int32_t*>(context);
  return ACL_SUCCESS;
}
aclError aclrtDestroyContext(aclrtContext context) {
  delete static_cast<std::int32_t*>(context);
  return ACL_SUCCESS;
}

aclError aclrtCreateStream(aclrtStream* stream) {
  if (stream == nullptr) return fail(ACL_ERROR_INVALID_PARAM, "aclrtCreateStream: null");
  auto made = std::make_shared<Stream>();
  *stream = made.get();
  const std::lock_guard lock(streams().mutex);
  streams().alive[*stream] = {device, std::move(made)};
  return ACL_SUCCESS;
}
aclError aclrtDestroyStream(aclrtStream stream) {
  // Declared before the lock, so that the destructor waits for the queue without the lock.
  std::shared_ptr<Stream> last;
  const std::lock_guard lock(streams().mutex);
  if (const auto found = streams().alive.find(stream); found != streams().alive.end()) {
    last = std::move(found->second.second);
    streams().alive.erase(found);
  }
  return ACL_SUCCESS;
}
aclError aclrtSynchronizeDevice() {
  std::vector<std::shared_ptr<Stream>> of_device;
  {
    const std::lock_guard lock(streams().mutex);
    for (const auto& [_, stream] : streams().alive) {
      if (stream.first == device) of_device.push_back(stream.second);
    }
  }
  int first = ACL_SUCCESS;
  for (const std::shared_ptr<Stream>& stream : of_device) {
    const Outcome outcome = stream->synchronize(-1);
    if (first == ACL_SUCCESS && outcome.code != ACL_SUCCESS)
      first = fail(outcome.code, outcome.message);
  }
  return first;
}
aclError aclrtSynchronizeStream(aclrtStream stream) {
  return synchronize("aclrtSynchronizeStream", stream, -1);
}
aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout) {
  return synchronize("aclrtSynchronizeStreamWithTimeout", stream, timeout);
}

aclError aclrtMalloc(void** pointer, size_t size, aclrtMemMallocPolicy) {
  return allocate("aclrtMalloc", pointer, size);
}
aclError aclrtMallocHost(void** pointer, size_t size) {
  return allocate("aclrtMallocHost", pointer, size);
}
aclError aclrtFree(void* pointer) {
  std::free(pointer);
  return ACL_SUCCESS;
}
aclError aclrtFreeHost(void* pointer) { return aclrtFree(pointer); }

aclError aclrtMemcpy(void* to, size_t room, const void* from, size_t count, aclrtMemcpyKind) {
  if (count == 0) return ACL_SUCCESS;
  if (const int code = check_copy("aclrtMemcpy", to, room, count); code != ACL_SUCCESS) return code;
  if (const int code = check_source("aclrtMemcpy", from); code != ACL_SUCCESS) return code;
  std::memcpy(to, from, count);
  return ACL_SUCCESS;
}
// NOLINTNEXTLINE(readability-function-size): the parameters are CANN's
aclError aclrtMemcpyAsync(void* to, size_t room, const void* from, size_t count, aclrtMemcpyKind,
                          aclrtStream stream) {
  const char* name = "aclrtMemcpyAsync";
  if (stream == nullptr) return fail(ACL_ERROR_INVALID_PARAM, fmt::format("{}: null stream", name));
  if (count == 0) return ACL_SUCCESS;
  if (const int code = check_copy(name, to, room, count); code != ACL_SUCCESS) return code;
  if (const int code = check_source(name, from); code != ACL_SUCCESS) return code;
  static_cast<Stream*>(stream)->enqueue([=] {
    std::memcpy(to, from, count);
    return Outcome{};
  });
  return ACL_SUCCESS;
}
aclError aclrtMemset(void* to, size_t room, int32_t value, size_t count) {
  if (count == 0) return ACL_SUCCESS;
  if (const int code = check_copy("aclrtMemset", to, room, count); code != ACL_SUCCESS) return code;
  std::memset(to, value, count);
  return ACL_SUCCESS;
}

}  // extern "C"
