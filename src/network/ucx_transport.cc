// UcxTransport: sends packets as active messages of UCX. It owns a context, a worker, and an
// endpoint for each peer.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"
#include "ferry/status.h"
#include "network/tcp_sockets.h"
#include "network/transport.h"
#include "network/ucx_config.h"
#include "network/ucx_library.h"

namespace ferry::internal {
namespace {

constexpr unsigned kPacketId = 1;  // the id of the active messages
constexpr std::size_t kMaxBodyBytes = std::size_t{256} << 10;
constexpr std::chrono::milliseconds kClosing{500};
// How often the options of new sockets are set. UCX may make a connection at any time, and its
// socket options matter only after the network was cut for longer than this.
constexpr std::int64_t kSetUpEveryNs = 250'000'000;

class UcxTransport final : public Transport {
 public:
  UcxTransport();
  ~UcxTransport() override;

  std::string address() const override;
  void let_in(const std::vector<std::string>& addresses) override;
  void connect(const std::map<int, std::string>& addresses) override;
  void disconnect(int rank) override;
  std::map<int, std::string> unconnected() const override;
  std::vector<int> silent(std::chrono::milliseconds time) const override;
  std::size_t max_body_bytes() override { return kMaxBodyBytes; }
  bool send(int peer, std::span<const std::byte> head, std::span<const std::byte> body,
            void* ticket) override;
  bool progress(const PacketReader& read, Events& events) override;
  bool arm() override;
  void sleep(int wait_us) override;
  void wake() override;
  std::string describe() const override;
  std::string exposed() const override;

 private:
  struct Peer {
    UcxTransport* transport;
    int rank;
    ucp_ep_h endpoint;  // null after the peer is lost
    TcpSockets::Place place;
  };

  // NOLINTNEXTLINE(readability-function-size): the parameters are UCX's
  static ucs_status_t on_packet(void* transport, const void* head, std::size_t head_bytes,
                                void* body, std::size_t body_bytes,
                                const ucp_am_recv_param_t* param);
  static void on_sent(void* request, ucs_status_t status, void* transport);
  static void on_failure(void* peer, ucp_ep_h endpoint, ucs_status_t status);
  void create_worker();
  std::string ucx_address() const;
  void connect_to(int rank, const std::string& address);
  void close(Peer& peer);
  bool closed(Deadline deadline);
  std::string why_lost(const Peer& peer, ucs_status_t status) const;
  [[nodiscard]] Error error(const std::string& what, ucs_status_t status, int culprit = -1) const;

  const UcxLibrary& ucx_ = ucx_library();
  TcpSockets sockets_;
  std::int64_t set_up_ns_ = 0;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int wake_fd_ = -1;
  std::map<int, Peer> peers_;           // elements must not move, because UCX points to them
  const PacketReader* read_ = nullptr;  // set while UCX's progress runs
  std::exception_ptr failure_;          // the exception of a packet's reader
  std::vector<void*> sent_;             // the tickets of finished sends
  std::vector<std::pair<int, ucs_status_t>> failed_;
  std::vector<void*> closing_;  // the requests of closing endpoints
};

// The endpoints at which a peer listens, without its loopback: "port 40123 of 10.77.0.2".
std::string where_is(const TcpSockets::Place& place) {
  std::vector<std::string> ends;
  for (const IpEndpoint& end : place.listens)
    if (!is_loopback(end.ip)) ends.push_back(text_of(end));
  return fmt::format("{}", fmt::join(ends, ", "));
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

UcxTransport::UcxTransport() {
  const UcxConfig config(ucx_);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_REQUEST_SIZE;
  params.request_size = sizeof(void*);  // space for a ticket
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  const ucs_status_t status =
      ucx_.init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config.read(), &context_);
  if (status != UCS_OK) throw error("finds no network", status);
  create_worker();
}

void UcxTransport::create_worker() {
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
  if (status == UCS_OK) return sockets_.find(ucx_address());
  if (worker_ != nullptr) ucx_.worker_destroy(worker_);
  ucx_.cleanup(context_);
  throw error("cannot use the network", status);
}

UcxTransport::~UcxTransport() {
  for (auto& [rank, peer] : peers_) close(peer);
  const Deadline deadline = Deadline::after(kClosing);
  while (!closed(deadline)) ucx_.worker_progress(worker_);
  ucx_.worker_destroy(worker_);
  ucx_.cleanup(context_);
}

std::string UcxTransport::ucx_address() const {
  ucp_address_t* address = nullptr;
  std::size_t bytes = 0;
  const ucs_status_t status = ucx_.worker_get_address(worker_, &address, &bytes);
  if (status != UCS_OK) throw error("has no address", status);
  std::string copy(reinterpret_cast<const char*>(address), bytes);
  ucx_.worker_release_address(worker_, address);
  return copy;
}

// The address has the length of the address of TcpSockets, that address, and UCX's address.
std::string UcxTransport::address() const {
  const std::string sockets = sockets_.address();
  std::string text;
  append(text, static_cast<std::uint32_t>(sockets.size()));
  return text + sockets + ucx_address();
}

void UcxTransport::let_in(const std::vector<std::string>& addresses) {
  std::vector<std::string> sockets;
  for (const std::string& address : addresses) {
    ByteReader reader(address);
    sockets.emplace_back(as_text(reader.take(reader.get<std::uint32_t>())));
  }
  sockets_.let_in(sockets);
}

void UcxTransport::connect(const std::map<int, std::string>& addresses) {
  for (const auto& [rank, address] : addresses) connect_to(rank, address);
  TcpSockets::set_up_connections();
}

void UcxTransport::connect_to(int rank, const std::string& address) {
  ByteReader reader(address);
  const TcpSockets::Place place =
      TcpSockets::place_of(as_text(reader.take(reader.get<std::uint32_t>())));
  if (!reader.ok() || reader.remaining() == 0)  // UCX has no parameter for the length of an address
    throw Error(Code::kMismatch, fmt::format("rank {} has no address of UCX", rank), rank);
  Peer& peer = peers_[rank];
  FERRY_CHECK(peer.endpoint, ==, nullptr);
  peer = {this, rank, nullptr, place};
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(reader.rest().data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {on_failure, &peer};
  const ucs_status_t status = ucx_.ep_create(worker_, &params, &peer.endpoint);
  if (status == UCS_OK) return;
  const std::string where = where_is(peer.place);
  throw error(fmt::format("cannot reach rank {} at {}", rank, where), status, rank);
}

void UcxTransport::disconnect(int rank) {
  const auto found = peers_.find(rank);
  if (found == peers_.end()) return;
  close(found->second);
  std::erase_if(failed_, [rank](const auto& failure) { return failure.first == rank; });
}

std::map<int, std::string> UcxTransport::unconnected() const {
  std::map<int, std::string> found;
  for (const IpEndpoint& end : sockets_.unconnected()) {
    for (const auto& [rank, peer] : peers_)
      if (std::ranges::count(peer.place.listens, end) > 0) found[rank] = text_of(end);
  }
  return found;
}

std::vector<int> UcxTransport::silent(std::chrono::milliseconds time) const {
  const std::set<Ip> hosts = sockets_.silent(static_cast<std::uint32_t>(time.count()));
  std::vector<int> found;
  for (const auto& [rank, peer] : peers_)
    if (std::ranges::any_of(peer.place.ips, [&](const Ip& ip) { return hosts.contains(ip); }))
      found.push_back(rank);
  return found;
}

bool UcxTransport::send(int rank, std::span<const std::byte> head, std::span<const std::byte> body,
                        void* ticket) {
  const Peer& peer = peers_.at(rank);
  FERRY_CHECK(head.size(), <=, kMaxHeadBytes);
  FERRY_CHECK(body.size(), <=, kMaxBodyBytes);
  if (peer.endpoint == nullptr) return true;
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = on_sent;
  param.user_data = this;
  void* request = ucx_.am_send_nbx(peer.endpoint, kPacketId, head.data(), head.size(), body.data(),
                                   body.size(), &param);
  // UCX also reports an error of this call to on_failure.
  if (!UCS_PTR_IS_PTR(request)) return true;
  *static_cast<void**>(request) = ticket;
  return false;
}

void UcxTransport::on_sent(void* request, ucs_status_t, void* transport) {
  UcxTransport& self = *static_cast<UcxTransport*>(transport);
  self.sent_.push_back(*static_cast<void**>(request));
  self.ucx_.request_free(request);
}

void UcxTransport::on_failure(void* peer, ucp_ep_h, ucs_status_t status) {
  const Peer& failed = *static_cast<Peer*>(peer);
  failed.transport->failed_.emplace_back(failed.rank, status);
}

// A packet is read where UCX has received it. To keep it would need a copy, since UCX reuses TCP's
// buffers.
// NOLINTNEXTLINE(readability-function-size)
ucs_status_t UcxTransport::on_packet(void* transport, const void* head, std::size_t head_bytes,
                                     void* body, std::size_t body_bytes,
                                     const ucp_am_recv_param_t* /*param*/) {
  UcxTransport& self = *static_cast<UcxTransport*>(transport);
  if (self.read_ == nullptr) return UCS_OK;  // the transport is closing
  try {
    (*self.read_)({.head = {static_cast<const std::byte*>(head), head_bytes},
                   .body = {static_cast<const std::byte*>(body), body_bytes}});
  } catch (...) {  // no exception may pass through UCX, which is C
    self.failure_ = std::current_exception();
  }
  return UCS_OK;
}

bool UcxTransport::progress(const PacketReader& read, Events& events) {
  FERRY_CHECK(read_, ==, nullptr);  // a reader must not call the transport
  read_ = &read;
  // Once: what has come may be what the caller waits for, and each call asks the kernel for more.
  bool moved = ucx_.worker_progress(worker_) > 0;
  read_ = nullptr;
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  for (const auto& [rank, status] : std::exchange(failed_, {})) {
    close(peers_.at(rank));
    events.lost.push_back({rank, why_lost(peers_.at(rank), status)});
    moved = true;
  }
  moved = moved || !sent_.empty();
  events.sent.insert(events.sent.end(), sent_.begin(), sent_.end());
  sent_.clear();
  return moved;
}

bool UcxTransport::arm() {
  if (now_ns() - set_up_ns_ > kSetUpEveryNs) {
    TcpSockets::set_up_connections(kSetUpEveryNs);
    set_up_ns_ = now_ns();
  }
  return failed_.empty() && sent_.empty() && ucx_.worker_arm(worker_) == UCS_OK;
}

void UcxTransport::sleep(int wait_us) {
  pollfd polled{wake_fd_, POLLIN, 0};
  const timespec wait{wait_us / 1'000'000, wait_us % 1'000'000 * 1000L};
  ppoll(&polled, 1, &wait, nullptr);
}

void UcxTransport::wake() { ucx_.worker_signal(worker_); }

void UcxTransport::close(Peer& peer) {
  if (peer.endpoint == nullptr) return;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  void* request = ucx_.ep_close_nbx(std::exchange(peer.endpoint, nullptr), &param);
  if (UCS_PTR_IS_PTR(request)) closing_.push_back(request);
}

bool UcxTransport::closed(Deadline deadline) {
  std::erase_if(closing_, [&](void* request) {
    if (ucx_.request_check_status(request) == UCS_INPROGRESS && !deadline.passed()) return false;
    ucx_.request_free(request);
    return true;
  });
  return closing_.empty();
}

std::string UcxTransport::why_lost(const Peer& peer, ucs_status_t status) const {
  const std::string why =
      fmt::format("the connection to it ended (UCX: {})", ucx_.status_string(status));
  return peer.place.listens.empty() ? why : why + "; it listens at " + where_is(peer.place);
}

Error UcxTransport::error(const std::string& what, ucs_status_t status, int culprit) const {
  return Error(Code::kSystem,
               fmt::format("UCX {}: {}; this host has {}", what, ucx_.status_string(status),
                           fmt::join(network_devices(), ", ")),
               culprit);
}

// Lists the transports and devices of the endpoints. UCX gives them only as text: the word after
// the second colon in lines such as "lane[0]: 1:tcp/eth0.0 md[1] -> ...".
std::string UcxTransport::describe() const {
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

std::string UcxTransport::exposed() const {
  const bool over_tcp = describe().find(" tcp") != std::string::npos;
  return over_tcp && sockets_.none() ? "/proc/self/fd does not show UCX's ports"
                                     : sockets_.exposed();
}

}  // namespace

std::unique_ptr<Transport> ucx_transport() { return std::make_unique<UcxTransport>(); }

}  // namespace ferry::internal
