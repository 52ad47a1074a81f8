// Shared by the tests of CUDA ranks: whether there is a device, data on it, and a scenario of the
// conformance suite with the settings that CUDA ranks accept, which one rank runs and compares with
// the oracle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "exchange/scenario.h"
#include "ferry/cuda.h"

namespace ferry::test {

// Whether there is a device, found without a call of CUDA, after which a process could not fork
// ranks. True too in the program that runs the kernels on the CPU (emulator/).
bool have_device();
#define FERRY_NEED_DEVICE() \
  if (!have_device()) GTEST_SKIP() << "this machine has no CUDA device (/dev/nvidia0)"

// A stream of the current device.
class TestStream {
 public:
  TestStream();
  ~TestStream();
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  cuda::Stream get() const { return stream_; }
  // Waits; throws Failure when the device failed.
  void finish() const;

 private:
  cuda::Stream stream_ = nullptr;
};

// A copy of host data on the device; null for an empty one.
class OnCuda {
 public:
  template <typename T>
  explicit OnCuda(const std::vector<T>& data) : OnCuda(data.data(), data.size() * sizeof(T)) {}
  OnCuda(const void* data, std::size_t bytes);
  template <typename T = void>
  T* get() const {
    return reinterpret_cast<T*>(memory_.get());
  }

 private:
  std::shared_ptr<std::byte> memory_;
};

std::vector<std::byte> read_device(const void* data, std::size_t bytes);
template <typename T>
std::vector<T> read_elements(const T* data, std::int64_t count) {
  const std::vector<std::byte> bytes = read_device(data, count * sizeof(T));
  std::vector<T> elements(count);
  std::memcpy(elements.data(), bytes.data(), bytes.size());
  return elements;
}

// A scenario without the settings that an exchange of CUDA ranks refuses.
Scenario cuda_scenario(int num_ranks, std::uint64_t seed);
// The ids of an input in the form for CUDA ranks: masked entries are -1.
std::vector<std::int64_t> masked_ids(const internal::RankInput& input, int top_k);

struct PlayChoices {
  bool halves = false;
  bool wait_for_counts = true;
};
// Runs the part of one rank on device 0; throws Failure where a result differs from the oracle.
void play_on_cuda(const Group& group, const Scenario& scenario, const PlayChoices& choices);

// Compares the rows of a dispatch, by the rules of the public headers.
void require_received(const ExchangeConfig& config, const cuda::Received& received,
                      const internal::RankReceived& expected, const std::string& what);

}  // namespace ferry::test
