// The functions of ferry/cuda.h where ferry is built without nvcc: no exchange can be made.
#include "ferry/cuda.h"
#include "group/state.h"

namespace ferry::cuda {

namespace {

const char* const kAbsent = "this ferry was built without CUDA: nvcc was not found";

Status absent() noexcept { return {Code::kClosed, kAbsent}; }

[[noreturn]] void refuse() { throw Error(Code::kSystem, kAbsent); }

}  // namespace

bool built() noexcept { return false; }
int num_devices() noexcept { return 0; }

std::int64_t Handle::num_tokens() const noexcept { return 0; }
std::int64_t Handle::num_rows() const noexcept { return -1; }
std::span<const std::int64_t> Handle::tokens_per_expert() const noexcept { return {}; }
std::span<const std::int64_t> Handle::aligned_tokens_per_expert() const noexcept { return {}; }
const std::int64_t* Handle::device_tokens_per_expert() const noexcept { return nullptr; }
const std::int64_t* Handle::device_aligned_tokens_per_expert() const noexcept { return nullptr; }
const std::int64_t* Handle::device_expert_offsets() const noexcept { return nullptr; }
const std::int64_t* Handle::device_running_counts() const noexcept { return nullptr; }
const std::int64_t* Handle::device_running_rows_per_rank() const noexcept { return nullptr; }

Exchange::Exchange(const Group&, const ExchangeConfig&, int) { refuse(); }
Status Exchange::dispatch(const DispatchArgs&, Received&) noexcept { return absent(); }
Status Exchange::dispatch_send(const DispatchArgs&, Received&) noexcept { return absent(); }
Status Exchange::dispatch_recv(Stream) noexcept { return absent(); }
Status Exchange::combine(const CombineArgs&) noexcept { return absent(); }
Status Exchange::combine_send(const CombineArgs&) noexcept { return absent(); }
Status Exchange::combine_recv(Stream) noexcept { return absent(); }
void* Exchange::outputs() const { refuse(); }
Status Exchange::check() noexcept { return absent(); }
Status Exchange::finish() noexcept { return absent(); }
const ExchangeConfig& Exchange::config() const { refuse(); }
int Exchange::device() const { refuse(); }
int Exchange::num_local_experts() const { refuse(); }
std::int64_t Exchange::row_capacity() const { refuse(); }
std::uint64_t Exchange::device_bytes() const { refuse(); }
bool Exchange::shares_device() const { refuse(); }

}  // namespace ferry::cuda
