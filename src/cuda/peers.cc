#include "cuda/peers.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <sys/random.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "base/check.h"
#include "cuda/memory.h"
#include "exchange/setup/agreement.h"

namespace ferry::internal {

namespace {

// The description of its window that a rank sends to the others.
struct WindowCard {
  std::uint64_t process;  // a random number that identifies the process
  // Valid in that process until all ranks have read the cards.
  const std::shared_ptr<std::byte>* here;
  const std::shared_ptr<IssueOrder::Counts>* issued;
  cudaIpcMemHandle_t handle;
  char uuid[16];  // UUID of the device
};
static_assert(std::is_trivially_copyable_v<WindowCard>);

std::uint64_t this_process() {
  static const std::uint64_t number = [] {
    std::uint64_t random = 0;
    if (getrandom(&random, sizeof random, 0) != sizeof random)
      throw Error(Code::kSystem, "the system gave no random bytes to identify this process");
    return random;
  }();
  return number;
}

WindowCard card_of(const std::shared_ptr<std::byte>& mine, const IssueOrder& order) {
  WindowCard card{};
  card.process = this_process(), card.here = &mine, card.issued = &order.counts();
  int device = 0;
  cuda_check(cudaGetDevice(&device), "reading the current device");
  cudaDeviceProp properties;
  cuda_check(cudaGetDeviceProperties(&properties, device), "reading the properties of a device");
  std::memcpy(card.uuid, &properties.uuid, sizeof card.uuid);
  cuda_check(cudaIpcGetMemHandle(&card.handle, mine.get()),
             "exporting a window to other processes");
  return card;
}

bool same_device(const WindowCard& a, const WindowCard& b) {
  return std::memcmp(a.uuid, b.uuid, sizeof a.uuid) == 0;
}

std::shared_ptr<std::byte> window_here(const WindowCard& mine, const WindowCard& peer) {
  if (same_device(mine, peer)) return *peer.here;
  int device = 0, other = 0, reachable = 0;
  cudaPointerAttributes attributes;
  cuda_check(cudaGetDevice(&device), "reading the current device");
  cuda_check(cudaPointerGetAttributes(&attributes, peer.here->get()),
             "reading the device of a window");
  other = attributes.device;
  cuda_check(cudaDeviceCanAccessPeer(&reachable, device, other),
             "reading whether a device reaches another");
  if (!reachable)
    throw Error(Code::kInvalidArgument,
                fmt::format("device {} cannot read the memory of device {}", device, other));
  const cudaError_t error = cudaDeviceEnablePeerAccess(other, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();
  } else {
    cuda_check(error, "reaching another device");
  }
  return *peer.here;
}

std::shared_ptr<std::byte> window_elsewhere(const WindowCard& peer) {
  void* memory = nullptr;
  cuda_check(cudaIpcOpenMemHandle(&memory, peer.handle, cudaIpcMemLazyEnablePeerAccess),
             "opening the window of another process");
  return {static_cast<std::byte*>(memory), [](std::byte* of) { cudaIpcCloseMemHandle(of); }};
}

}  // namespace

CudaPeers share_windows(GroupState& group, const std::shared_ptr<std::byte>& window,
                        IssueOrder& order, const Deadline& by) {
  WindowCard card{};
  make_alike(group, by, [&] {
    card = card_of(window, order);
    return std::string();
  });
  std::vector<WindowCard> cards(group.size());
  require_ok(group.all_gather(&card, sizeof card, cards.data()));
  CudaPeers peers{.windows = {}, .all_near = true};
  // Collective: no rank returns before all ranks have taken the objects that the cards point to.
  make_alike(group, by, [&] {
    for (int peer = 0; peer < group.size(); ++peer) {
      const bool here = cards[peer].process == card.process;
      const bool near = here && same_device(card, cards[peer]);
      peers.all_near = peers.all_near && near;
      if (near && peer != group.rank()) order.add(peer, *cards[peer].issued);
      peers.windows.push_back(peer == group.rank() ? window
                              : here               ? window_here(card, cards[peer])
                                                   : window_elsewhere(cards[peer]));
    }
    return std::string();
  });
  FERRY_CHECK(std::ssize(peers.windows), ==, group.size());
  FERRY_CHECK(peers.windows[group.rank()].get(), ==, window.get());
  return peers;
}

}  // namespace ferry::internal
