// The CUDA runtime as the rest of this folder uses it: errors, the current device, memory of a
// device, and memory of the host to which a device can write. The destructor of the owner frees the
// memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

namespace ferry::internal {

// Throws Error that names the failed action, `what`: kCapacity if memory is refused, else kSystem.
void cuda_check(cudaError_t error, const char* what);

// Makes a device the current one of this thread, as long as the object lives.
class OnDevice {
 public:
  explicit OnDevice(int device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
};

// Whether the stream captures a graph.
bool is_capturing(cudaStream_t stream) noexcept;

// Zeroed bytes of the current device.
std::shared_ptr<std::byte> device_memory(std::size_t bytes);
// Zeroed bytes of the host, at the same address on the device.
std::shared_ptr<std::byte> mapped_memory(std::size_t bytes);

}  // namespace ferry::internal
