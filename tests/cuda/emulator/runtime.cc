// The part of CUDA's runtime that src/cuda and its tests use, for a machine without a device.
// Memory ends at a page that cannot be touched, streams are threads, and graphs are lists. Kernels
// run in block.cc. With FERRY_EMULATED_ORDER=issue the work of all streams runs one after the
// other, in the order of issue, as on a device that runs one kernel at a time.
#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/emulator/device.h"

using Work = std::function<void()>;

namespace {

constexpr std::size_t kMostBytes = std::size_t{8} << 30, kMostShared = std::size_t{48} << 10;
constexpr std::size_t kPoisoned = std::size_t{1} << 20;
constexpr unsigned kMostThreads = 1024;
constexpr int kProcessors = 2;

thread_local cudaError_t last_error = cudaSuccess;

cudaError_t told(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

// A thread that does one piece of work after the other. It is never freed.
class Worker {
 public:
  Worker() {
    std::thread([this] { run(); }).detach();
  }
  std::mutex mutex;
  std::condition_variable changed;

  void add(CUstream_st* stream, Work work);

 private:
  void run();
  std::deque<std::pair<CUstream_st*, Work>> queue_;
};

}  // namespace

// Streams are never freed, so that an event may read one that was destroyed. The mutex of the
// worker guards the counts.
struct CUstream_st {
  Worker* worker;
  std::uint64_t issued = 0, done = 0;
  std::unique_ptr<std::vector<Work>> capture = nullptr;

  bool idle() {
    const std::lock_guard lock(worker->mutex);
    return done == issued;
  }
};
struct CUevent_st {
  CUstream_st* stream = nullptr;
  std::uint64_t number = 0;  // of its work that must be done
};
struct CUgraph_st {
  std::vector<Work> work;
};
struct CUgraphExec_st {
  std::vector<Work> work;
};

namespace {

void Worker::add(CUstream_st* stream, Work work) {
  if (stream->capture) return stream->capture->push_back(std::move(work));
  const std::lock_guard lock(mutex);
  ++stream->issued;
  queue_.emplace_back(stream, std::move(work));
  changed.notify_all();
}

void Worker::run() {
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [this] { return !queue_.empty(); });
    const auto [stream, work] = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    work();
    lock.lock();
    ++stream->done;
    changed.notify_all();
  }
}

// Streams that were destroyed are reused once their work has ended.
class Streams {
 public:
  CUstream_st* take() {
    const std::lock_guard lock(mutex_);
    for (CUstream_st*& stream : free_) {
      if (!stream->idle()) continue;
      std::swap(stream, free_.back());
      CUstream_st* const taken = free_.back();
      free_.pop_back();
      return taken;
    }
    return make();
  }
  void give_back(CUstream_st* stream) {
    const std::lock_guard lock(mutex_);
    free_.push_back(stream);
  }
  CUstream_st* legacy() {
    const std::lock_guard lock(mutex_);
    if (legacy_ == nullptr) legacy_ = make();
    return legacy_;
  }

 private:
  CUstream_st* make() {
    if (in_order_ && only_ == nullptr) only_ = new Worker;
    return new CUstream_st{in_order_ ? only_ : new Worker};
  }

  const char* const order_ = std::getenv("FERRY_EMULATED_ORDER");
  const bool in_order_ = order_ != nullptr && std::string_view(order_) == "issue";
  std::mutex mutex_;
  std::vector<CUstream_st*> free_;
  CUstream_st* legacy_ = nullptr;
  Worker* only_ = nullptr;
};

Streams& streams() {
  static Streams& streams = *new Streams;  // workers outlive main()
  return streams;
}

CUstream_st* of(cudaStream_t stream) { return stream != nullptr ? stream : streams().legacy(); }

cudaError_t add(cudaStream_t stream, Work work) {
  of(stream)->worker->add(of(stream), std::move(work));
  return cudaSuccess;
}

bool done(CUstream_st* stream, std::uint64_t number) {
  const std::lock_guard lock(stream->worker->mutex);
  return stream->done >= number;
}

void await(CUstream_st* stream, std::uint64_t number) {
  std::unique_lock lock(stream->worker->mutex);
  stream->worker->changed.wait(lock, [&] { return stream->done >= number; });
}

std::uint64_t issued_on(CUstream_st* stream) {
  const std::lock_guard lock(stream->worker->mutex);
  return stream->issued;
}

// An allocation ends before a page that no code may touch, as closely as its alignment of 256
// allows. Freed memory cannot be touched either. Windows are large and mostly unused: only pages
// that are written take memory of this machine.
class Memory {
 public:
  cudaError_t take(void** at, std::size_t bytes, cudaMemoryType type) {
    if (bytes > kMostBytes) return cudaErrorMemoryAllocation;
    const std::size_t page = sysconf(_SC_PAGESIZE), used = (bytes + 255) / 256 * 256;
    const std::size_t whole = (used + page - 1) / page * page + page;
    void* const mapped = mmap(nullptr, whole, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return cudaErrorMemoryAllocation;
    std::byte* const guard = static_cast<std::byte*>(mapped) + whole - page;
    mprotect(guard, page, PROT_NONE);
    std::memset(mapped, 0xa5, std::min(whole - page, kPoisoned));
    const std::lock_guard lock(mutex_);
    parts_[guard - used] = {mapped, whole, bytes, type};
    *at = guard - used;
    return cudaSuccess;
  }

  cudaError_t give_back(void* at) {
    if (at == nullptr) return cudaSuccess;
    const std::lock_guard lock(mutex_);
    const auto part = parts_.find(static_cast<std::byte*>(at));
    if (part == parts_.end()) return cudaErrorInvalidValue;
    munmap(part->second.mapped, part->second.whole);
    parts_.erase(part);
    return cudaSuccess;
  }

  // Whole pages of zeros are returned to the system, which gives them as zeros again.
  static void fill(std::byte* to, int value, std::size_t bytes) {
    const std::size_t page = sysconf(_SC_PAGESIZE);
    const std::size_t before = std::min(bytes, -reinterpret_cast<std::size_t>(to) % page);
    const std::size_t pages = value == 0 ? (bytes - before) / page * page : 0;
    std::memset(to, value, before);
    if (pages > 0 && madvise(to + before, pages, MADV_DONTNEED) != 0) std::abort();
    std::memset(to + before + pages, value, bytes - before - pages);
  }

  cudaMemoryType type_of(const void* address) {
    const auto* at = static_cast<const std::byte*>(address);
    const std::lock_guard lock(mutex_);
    auto part = parts_.upper_bound(at);
    if (part == parts_.begin()) return cudaMemoryTypeUnregistered;
    --part;
    return at < part->first + part->second.bytes ? part->second.type : cudaMemoryTypeUnregistered;
  }

 private:
  struct Part {
    void* mapped;
    std::size_t whole, bytes;
    cudaMemoryType type;
  };
  std::mutex mutex_;
  std::map<const std::byte*, Part> parts_;
};

Memory& memory() {
  static Memory& memory = *new Memory;
  return memory;
}

}  // namespace

void ferry::emulator::issue(const Launch& launch, cudaStream_t stream, Work thread) {
  if (launch.grid < 1 || launch.block < 1 || launch.block > kMostThreads ||
      launch.shared_bytes > kMostShared) {
    told(cudaErrorInvalidConfiguration);
    return;
  }
  add(stream, [launch, thread = std::move(thread)] { run_grid(launch, thread); });
}

// ---- errors

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorNotSupported: return "cudaErrorNotSupported";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    default: return "cudaErrorUnknown";
  }
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

// ---- the device

cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
  return told(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  std::memset(properties, 0, sizeof *properties);
  std::strcpy(properties->name, "emulated");
  properties->multiProcessorCount = kProcessors;
  return cudaSetDevice(device);
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (attribute != cudaDevAttrMultiProcessorCount) return told(cudaErrorNotSupported);
  *value = kProcessors;
  return cudaSetDevice(device);
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 0, cudaSuccess; }
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return told(cudaErrorNotSupported); }
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  std::memset(attributes, 0, sizeof *attributes);
  return cudaSuccess;
}

// ---- memory

cudaError_t cudaMalloc(void** at, std::size_t bytes) {
  return told(memory().take(at, bytes, cudaMemoryTypeDevice));
}
cudaError_t cudaHostAlloc(void** at, std::size_t bytes, unsigned) {
  return told(memory().take(at, bytes, cudaMemoryTypeHost));
}
// Unlike CUDA, this does not wait for kernels, so that a kernel that uses freed memory fails.
cudaError_t cudaFree(void* at) { return told(memory().give_back(at)); }
cudaError_t cudaFreeHost(void* at) { return told(memory().give_back(at)); }

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* at) {
  std::memset(attributes, 0, sizeof *attributes);
  attributes->type = memory().type_of(at);
  attributes->device = attributes->type == cudaMemoryTypeUnregistered ? -1 : 0;
  attributes->devicePointer = attributes->device == 0 ? const_cast<void*>(at) : nullptr;
  return cudaSuccess;
}

// Streams are created so that they do not wait for the legacy stream.
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  memory().fill(static_cast<std::byte*>(to), value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  return add(stream, [=] { std::memcpy(to, from, bytes); });
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  return add(stream, [=] { memory().fill(static_cast<std::byte*>(to), value, bytes); });
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void*) {
  std::memset(handle, 0, sizeof *handle);
  return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned) {
  return told(cudaErrorNotSupported);
}
cudaError_t cudaIpcCloseMemHandle(void*) { return told(cudaErrorNotSupported); }

// ---- streams and events

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  if (flags != cudaStreamNonBlocking) return told(cudaErrorNotSupported);
  *stream = streams().take();
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  streams().give_back(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (of(stream)->capture) return told(cudaErrorStreamCaptureUnsupported);
  await(of(stream), issued_on(of(stream)));
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return of(stream)->idle() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->stream = of(stream), event->number = issued_on(of(stream));
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event->stream != nullptr) await(event->stream, event->number);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const bool through = event->stream == nullptr || done(event->stream, event->number);
  return through ? cudaSuccess : cudaErrorNotReady;
}

// ---- graphs

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const bool capturing = stream != nullptr && stream->capture != nullptr;
  *status = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  stream->capture = std::make_unique<std::vector<Work>>();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = new CUgraph_st{std::move(*stream->capture)};
  stream->capture.reset();
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  *executable = new CUgraphExec_st{graph->work};
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  for (const Work& work : executable->work) add(stream, work);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}
