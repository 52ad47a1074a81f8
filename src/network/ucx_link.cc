// UcxLink: packets as UCX's active messages. Owns a context, a worker and an endpoint per peer.
// Made by ucx_link(); calls ucx_library.h.
#include <fmt/format.h>
#include <net/if.h>
#include <poll.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/environment.h"
#include "ferry/status.h"
#include "network/link.h"
#include "network/ucx_library.h"

namespace ferry::internal {
namespace {

constexpr unsigned kPacketId = 1;      // of the active messages
constexpr int kRoundsPerProgress = 8;  // of UCX's progress; then others get a turn
constexpr std::size_t kMaxBodyBytes = std::size_t{256} << 10;
constexpr const char* kTcpPiece = "264k";  // a packet, and UCX's heads
constexpr std::chrono::milliseconds kClosing{500};

class UcxLink final : public Link {
 public:
  UcxLink();
  ~UcxLink() override;

  std::string address() const override;
  void connect(int peer, const std::string& address) override;
  std::size_t max_body_bytes() override { return kMaxBodyBytes; }
  bool send(int peer, std::span<const std::byte> head, std::span<const std::byte> body,
            void* ticket) override;
  bool progress(Events& events) override;
  bool arm() override;
  void sleep(int wait_us) override;
  void wake() override;
  std::string describe() const override;

 private:
  struct Peer {
    UcxLink* link;
    int rank;
    ucp_ep_h endpoint;  // null once lost
  };
  // A send from inside UCX's progress. A connection that turns out to be broken there would be
  // closed under UCX's feet: 1.13 aborts the process when it finds it among the events at hand.
  struct Late {
    int peer;
    std::span<const std::byte> head, body;
    void* ticket;
  };

  // NOLINTNEXTLINE(readability-function-size): the parameters are UCX's
  static ucs_status_t on_packet(void* link, const void* head, std::size_t head_bytes, void* body,
                                std::size_t body_bytes, const ucp_am_recv_param_t* param);
  static void on_sent(void* request, ucs_status_t status, void* link);
  static void on_failure(void* peer, ucp_ep_h endpoint, ucs_status_t status);
  void create_worker();
  void send_late();
  void close(Peer& peer);
  bool closed(Deadline deadline);
  [[nodiscard]] Error error(const std::string& what, ucs_status_t status) const;

  const UcxLibrary& ucx_ = ucx_library();
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int wake_fd_ = -1;
  std::map<int, Peer> peers_;  // its elements do not move: UCX points to them
  Events* events_ = nullptr;   // inside UCX's progress
  std::vector<Late> late_;
  std::vector<void*> sent_;  // tickets
  std::vector<std::pair<int, ucs_status_t>> failed_;
  std::vector<void*> closing_;  // requests
};

std::vector<std::string> rdma_devices() {
  std::vector<std::string> names;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/class/infiniband", none))
    names.push_back(entry.path().filename());
  return names;
}

// Network interfaces and RDMA devices of this host.
std::vector<std::string> devices() {
  std::vector<std::string> names = rdma_devices();
  if (struct if_nameindex* interfaces = if_nameindex(); interfaces != nullptr) {
    for (struct if_nameindex* i = interfaces; i->if_name != nullptr; ++i)
      names.emplace_back(i->if_name);
    if_freenameindex(interfaces);
  }
  return names;
}

// Throws Error(kInvalidArgument) for a name that this host does not have. RDMA devices may be named
// with a port, such as "mlx5_0:1".
void check_devices(std::string_view wanted) {
  const std::vector<std::string> there = devices();
  while (!wanted.empty()) {
    const std::string_view name = wanted.substr(0, wanted.find(','));
    const std::string_view device = name.substr(0, name.find(':'));
    if (std::find(there.begin(), there.end(), device) == there.end()) {
      throw Error(Code::kInvalidArgument,
                  fmt::format("FERRY_SOCKET_IFNAME names '{}', which is no network interface of "
                              "this host; it has {}",
                              name, fmt::join(there, ", ")));
    }
    wanted.remove_prefix(std::min(name.size() + 1, wanted.size()));
  }
}

std::string printed_info(const UcxLibrary& ucx, ucp_ep_h endpoint) {
  char* text = nullptr;
  std::size_t bytes = 0;
  std::FILE* file = open_memstream(&text, &bytes);
  if (file == nullptr) return {};
  ucx.ep_print_info(endpoint, file);
  std::fclose(file);
  std::string info(text, bytes);
  std::free(text);
  return info;
}

// UCX's configuration: what the environment says, and ferry's own choices where it says nothing.
class Config {
 public:
  explicit Config(const UcxLibrary& ucx) : ucx_(ucx) {
    const ucs_status_t status = ucx_.config_read(nullptr, nullptr, &config_);
    if (status != UCS_OK) {
      throw Error(Code::kSystem,
                  fmt::format("UCX cannot read its configuration: {}", ucx_.status_string(status)));
    }
  }
  ~Config() { ucx_.config_release(config_); }
  Config(const Config&) = delete;
  Config& operator=(const Config&) = delete;

  // `transport` has its own table of options. UCX 1.13 wants the bare name there, later ones the
  // transport's name in front of it, as in the environment.
  void prefer(const std::string& transport, const std::string& name, const char* value) {
    const std::string full_name = transport + "_" + name;
    const std::string& key = is_before_1_14() ? name : full_name;
    if (!environment("UCX_" + full_name))
      ucx_.config_modify(config_, key.c_str(), value);  // refused where there is no such transport
  }
  void prefer(const std::string& name, const char* value) {
    if (environment("UCX_" + name)) return;
    const ucs_status_t status = ucx_.config_modify(config_, name.c_str(), value);
    if (status != UCS_OK) {
      throw Error(Code::kSystem,
                  fmt::format("UCX refuses {}={}: {}", name, value, ucx_.status_string(status)));
    }
  }
  const ucp_config_t* read() const noexcept { return config_; }

 private:
  bool is_before_1_14() const {
    unsigned major = 0, minor = 0, release = 0;
    ucx_.version(&major, &minor, &release);
    return major == 1 && minor < 14;
  }

  const UcxLibrary& ucx_;
  ucp_config_t* config_ = nullptr;
};

UcxLink::UcxLink() {
  Config config(ucx_);
  // Ranks that share memory do not talk over a link, and nodes of one machine may live in
  // namespaces that UCX's shared memory does not cross.
  config.prefer("SHM_DEVICES", "");
  // A whole packet in one piece: over TCP, where the default of 64 KiB has every packet put
  // together, this saves a third of the processor time.
  config.prefer("TCP", "RX_SEG_SIZE", kTcpPiece);
  // UCX 1.13 aborts when a connection ends while it sends over TCP without a copy. The copy costs
  // no more than what it saves in system calls (docs/decisions/between_nodes.md).
  if (rdma_devices().empty()) {
    config.prefer("TCP", "TX_SEG_SIZE", kTcpPiece);
    config.prefer("ZCOPY_THRESH", "inf");
  }
  // A peer that says nothing is asked after.
  config.prefer("KEEPALIVE_INTERVAL", "1s");
  config.prefer("TCP", "KEEPIDLE", "1s");
  config.prefer("TCP", "KEEPINTVL", "1s");
  config.prefer("TCP", "KEEPCNT", "3");
  if (const auto wanted = environment("FERRY_SOCKET_IFNAME")) {
    if (!environment("UCX_NET_DEVICES")) check_devices(*wanted);
    config.prefer("NET_DEVICES", wanted->c_str());
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_REQUEST_SIZE;
  params.request_size = sizeof(void*);  // a ticket
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  const ucs_status_t status =
      ucx_.init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config.read(), &context_);
  if (status != UCS_OK) throw error("finds no network", status);
  create_worker();
}

void UcxLink::create_worker() {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucs_status_t status = ucx_.worker_create(context_, &params, &worker_);
  if (status == UCS_OK) status = ucx_.worker_get_efd(worker_, &wake_fd_);
  if (status == UCS_OK) {
    ucp_am_handler_param_t handler{};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                         UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id = kPacketId;
    handler.cb = on_packet;
    handler.arg = this;
    status = ucx_.worker_set_am_recv_handler(worker_, &handler);
  }
  if (status == UCS_OK) return;
  if (worker_ != nullptr) ucx_.worker_destroy(worker_);
  ucx_.cleanup(context_);
  throw error("cannot use the network", status);
}

UcxLink::~UcxLink() {
  for (auto& [rank, peer] : peers_) close(peer);
  const Deadline deadline = Deadline::after(kClosing);
  while (!closed(deadline)) ucx_.worker_progress(worker_);
  ucx_.worker_destroy(worker_);
  ucx_.cleanup(context_);
}

std::string UcxLink::address() const {
  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  const ucs_status_t status = ucx_.worker_get_address(worker_, &address, &bytes);
  if (status != UCS_OK) throw error("has no address", status);
  std::string copy(reinterpret_cast<const char*>(address), bytes);
  ucx_.worker_release_address(worker_, address);
  return copy;
}

void UcxLink::connect(int rank, const std::string& address) {
  Peer& peer = peers_[rank];
  peer = {this, rank, nullptr};
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {on_failure, &peer};
  const ucs_status_t status = ucx_.ep_create(worker_, &params, &peer.endpoint);
  if (status != UCS_OK) throw error(fmt::format("cannot reach rank {}", rank), status);
}

bool UcxLink::send(int rank, std::span<const std::byte> head, std::span<const std::byte> body,
                   void* ticket) {
  const Peer& peer = peers_.at(rank);
  if (peer.endpoint == nullptr) return true;
  if (events_ != nullptr) {
    late_.push_back({rank, head, body, ticket});
    return false;
  }
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = on_sent;
  param.user_data = this;
  void* request = ucx_.am_send_nbx(peer.endpoint, kPacketId, head.data(), head.size(), body.data(),
                                   body.size(), &param);
  // An error here has been, or will be, told to on_failure as well.
  if (!UCS_PTR_IS_PTR(request)) return true;
  *static_cast<void**>(request) = ticket;
  return false;
}

void UcxLink::send_late() {
  for (const Late& late : std::exchange(late_, {})) {
    if (send(late.peer, late.head, late.body, late.ticket)) sent_.push_back(late.ticket);
  }
}

void UcxLink::on_sent(void* request, ucs_status_t, void* link) {
  UcxLink& self = *static_cast<UcxLink*>(link);
  self.sent_.push_back(*static_cast<void**>(request));
  self.ucx_.request_free(request);
}

void UcxLink::on_failure(void* peer, ucp_ep_h, ucs_status_t status) {
  const Peer& failed = *static_cast<Peer*>(peer);
  failed.link->failed_.emplace_back(failed.rank, status);
}

// NOLINTNEXTLINE(readability-function-size)
ucs_status_t UcxLink::on_packet(void* link, const void* head, std::size_t head_bytes, void* body,
                                std::size_t body_bytes, const ucp_am_recv_param_t*) {
  Events* events = static_cast<UcxLink*>(link)->events_;
  if (events == nullptr) return UCS_OK;  // closing
  events->arrived({static_cast<const std::byte*>(head), head_bytes},
                  {static_cast<const std::byte*>(body), body_bytes});
  return UCS_OK;
}

bool UcxLink::progress(Events& events) {
  bool moved = false;
  for (int round = 0; round < kRoundsPerProgress; ++round) {
    events_ = &events;
    const unsigned count = ucx_.worker_progress(worker_);
    events_ = nullptr;
    send_late();
    if (count == 0) break;
    moved = true;
  }
  for (const auto& [rank, status] : std::exchange(failed_, {})) {
    close(peers_.at(rank));
    events.lost(rank, fmt::format("the link to it ended (UCX: {})", ucx_.status_string(status)));
    moved = true;
  }
  // By index: whoever is told may send, and that may end at once.
  for (std::size_t i = 0; i < sent_.size(); ++i) events.sent(sent_[i]);
  moved = moved || !sent_.empty();
  sent_.clear();
  return moved;
}

bool UcxLink::arm() {
  return failed_.empty() && sent_.empty() && ucx_.worker_arm(worker_) == UCS_OK;
}

void UcxLink::sleep(int wait_us) {
  pollfd polled{wake_fd_, POLLIN, 0};
  const timespec wait{wait_us / 1'000'000, wait_us % 1'000'000 * 1000L};
  ppoll(&polled, 1, &wait, nullptr);
}

void UcxLink::wake() { ucx_.worker_signal(worker_); }

void UcxLink::close(Peer& peer) {
  if (peer.endpoint == nullptr) return;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  void* request = ucx_.ep_close_nbx(std::exchange(peer.endpoint, nullptr), &param);
  if (UCS_PTR_IS_PTR(request)) closing_.push_back(request);
}

bool UcxLink::closed(Deadline deadline) {
  std::erase_if(closing_, [&](void* request) {
    if (ucx_.request_check_status(request) == UCS_INPROGRESS && !deadline.passed()) return false;
    ucx_.request_free(request);
    return true;
  });
  return closing_.empty();
}

Error UcxLink::error(const std::string& what, ucs_status_t status) const {
  return Error(Code::kSystem, fmt::format("UCX {}: {}; this host has {}", what,
                                          ucx_.status_string(status), fmt::join(devices(), ", ")));
}

// Transports and devices of the endpoints. UCX tells them only as text: of its lines such as
// "lane[0]:  1:tcp/eth0.0 md[1]  -> ...", the word after the second colon.
std::string UcxLink::describe() const {
  std::set<std::string> lanes;
  for (const auto& [rank, peer] : peers_) {
    if (peer.endpoint == nullptr) continue;
    const std::string info = printed_info(ucx_, peer.endpoint);
    for (std::size_t at = info.find("lane["); at != std::string::npos;
         at = info.find("lane[", at + 1)) {
      const std::size_t begin = info.find(':', info.find(':', at) + 1) + 1;
      lanes.insert(info.substr(begin, info.find_first_of(". \n", begin) - begin));
    }
  }
  return fmt::format("UCX {} {}", ucx_.version_string(), fmt::join(lanes, ", "));
}

}  // namespace

std::unique_ptr<Link> ucx_link() { return std::make_unique<UcxLink>(); }

}  // namespace ferry::internal
