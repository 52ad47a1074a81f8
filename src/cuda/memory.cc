#include "cuda/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "ferry/status.h"

namespace ferry::internal {

void cuda_check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // clears the error, which the next call would return again
  throw Error(error == cudaErrorMemoryAllocation ? Code::kCapacity : Code::kSystem,
              fmt::format("{}: {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error)));
}

OnDevice::OnDevice(int device) {
  cuda_check(cudaGetDevice(&before_), "reading the current device");
  if (before_ != device) cuda_check(cudaSetDevice(device), "choosing a device");
}

OnDevice::~OnDevice() { cudaSetDevice(before_); }

bool is_capturing(cudaStream_t stream) noexcept {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
         status != cudaStreamCaptureStatusNone;
}

std::shared_ptr<std::byte> device_memory(std::size_t bytes) {
  void* memory = nullptr;
  const std::size_t size = std::max<std::size_t>(bytes, 1);
  const std::string what = fmt::format("allocating {} bytes of device memory", size);
  cuda_check(cudaMalloc(&memory, size), what.c_str());
  std::shared_ptr<std::byte> owned(static_cast<std::byte*>(memory),
                                   [](std::byte* of) { cudaFree(of); });
  cuda_check(cudaMemset(memory, 0, size), "clearing device memory");
  cuda_check(cudaStreamSynchronize(nullptr), "clearing device memory");
  return owned;
}

std::shared_ptr<std::byte> mapped_memory(std::size_t bytes) {
  void* memory = nullptr;
  const std::string what = fmt::format("allocating {} bytes of host memory for a device", bytes);
  cuda_check(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped | cudaHostAllocPortable),
             what.c_str());
  std::shared_ptr<std::byte> owned(static_cast<std::byte*>(memory),
                                   [](std::byte* of) { cudaFreeHost(of); });
  std::memset(memory, 0, bytes);
  return owned;
}

}  // namespace ferry::internal
