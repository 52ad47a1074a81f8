// The thread that writes the file, or replies at the port. A scrape is one connection: a request,
// the text, the end.
#include "group/metrics.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/environment.h"
#include "ferry/status.h"

namespace ferry::internal {
namespace {

constexpr int kWriteMs = 1000;                   // milliseconds between two writes of the file
constexpr std::chrono::seconds kScrapeLimit{1};  // limit of a connection, to its last byte

std::string labels(const NodeCounters& node, int rank) {
  return fmt::format("group=\"{:016x}\",rank=\"{}\"", node.head().group, rank);
}

bool has_come(const NodeCounters& node, int rank) {
  return node.of(rank).value(static_cast<int>(Counter::kPid)) != 0;
}

void append_head(std::string& text, const std::string& name, const char* meaning, bool grows) {
  text +=
      fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, meaning, name, grows ? "counter" : "gauge");
}

Error refused(const MetricsPlace& place, const std::string& what) {
  return Error(Code::kSystem,
               fmt::format("FERRY_METRICS={}: {}: {}", place.text, what, std::strerror(errno)));
}

sockaddr_storage address_of(const MetricsPlace& place) {
  sockaddr_storage storage{};
  if (place.address.front() == '[') {
    auto& at = reinterpret_cast<sockaddr_in6&>(storage);
    at.sin6_family = AF_INET6;
    at.sin6_port = htons(static_cast<in_port_t>(place.port));
    inet_pton(AF_INET6, place.address.substr(1, place.address.size() - 2).c_str(), &at.sin6_addr);
  } else {
    auto& at = reinterpret_cast<sockaddr_in&>(storage);
    at.sin_family = AF_INET;
    at.sin_port = htons(static_cast<in_port_t>(place.port));
    inet_pton(AF_INET, place.address.c_str(), &at.sin_addr);
  }
  return storage;
}

Descriptor listen_at(const MetricsPlace& place) {
  const sockaddr_storage at = address_of(place);
  Descriptor socket(::socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int yes = 1;
  setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  const socklen_t bytes = at.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (bind(socket.fd(), reinterpret_cast<const sockaddr*>(&at), bytes) != 0 ||
      listen(socket.fd(), SOMAXCONN) != 0)
    throw refused(place, "cannot listen");
  return socket;
}

// The connection of one client. It ends at the limit, or when the exporter ends.
class Scrape {
 public:
  Scrape(int listener, int ending)
      : client_(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)),
        ending_(ending) {}

  void reply(const std::string& text) {
    char request[4096];  // its contents are ignored
    if (!client_ || !wait_for(POLLIN) || recv(client_.fd(), request, sizeof request, 0) <= 0)
      return;
    const std::string all = fmt::format(
        "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n"
        "Content-Length: {}\r\n\r\n{}",
        text.size(), text);
    for (std::size_t sent = 0; sent < all.size() && wait_for(POLLOUT);) {
      const ssize_t more = send(client_.fd(), all.data() + sent, all.size() - sent, MSG_NOSIGNAL);
      if (more < 0 && errno != EAGAIN) return;
      sent += static_cast<std::size_t>(std::max<ssize_t>(more, 0));
    }
  }

 private:
  bool wait_for(short events) const {
    pollfd waited[] = {{client_.fd(), events, 0}, {ending_, POLLIN, 0}};
    while (!limit_.passed()) {
      if (poll(waited, 2, limit_.remaining_ms()) > 0) return waited[1].revents == 0;
    }
    return false;
  }

  Descriptor client_;
  int ending_;
  Deadline limit_ = Deadline::after(kScrapeLimit);
};

// Opens a new file, and never a link that another user has made.
Descriptor new_file(const std::string& path) {
  unlink(path.c_str());
  return Descriptor(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
}

bool write_all(const Descriptor& file, const std::string& text) {
  for (std::size_t written = 0; written < text.size();) {
    const ssize_t more = write(file.fd(), text.data() + written, text.size() - written);
    if (more == 0 || (more < 0 && errno != EINTR)) return false;
    written += static_cast<std::size_t>(std::max<ssize_t>(more, 0));
  }
  return true;
}

}  // namespace

class Exporter {
 public:
  explicit Exporter(MetricsPlace place)
      : place_(std::move(place)), ending_(eventfd(0, EFD_CLOEXEC)) {
    if (place_.port > 0) listener_ = listen_at(place_);
    if (place_.port == 0 && !write_file()) throw refused(place_, "cannot write");
    sigset_t all, before;  // signals must be delivered to the program's own threads
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { live(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  ~Exporter() {
    eventfd_write(ending_.fd(), 1);
    thread_.join();
  }
  Exporter(const Exporter&) = delete;
  Exporter& operator=(const Exporter&) = delete;

  void add(const NodeCounters* node) {
    const std::lock_guard lock(mutex_);
    nodes_.push_back(node);
  }

  void remove(const NodeCounters* node) {
    write_file();
    const std::lock_guard lock(mutex_);
    std::erase(nodes_, node);
  }

 private:
  void live() {
    pollfd waited[] = {{ending_.fd(), POLLIN, 0}, {listener_.fd(), POLLIN, 0}};
    for (;;) {
      poll(waited, 2, place_.port > 0 ? -1 : kWriteMs);
      if (waited[0].revents != 0) return;
      if (waited[1].revents != 0) Scrape(listener_.fd(), ending_.fd()).reply(text());
      write_file();
    }
  }

  std::string text() {
    const std::lock_guard lock(mutex_);
    return metrics_text(nodes_);
  }

  // Renames the file in one step, so that a reader sees a complete file.
  bool write_file() {
    if (place_.port > 0) return true;
    const std::string all = text();
    const std::lock_guard lock(writing_);
    const std::string fresh = place_.file + ".new";
    const Descriptor file = new_file(fresh);
    return file && write_all(file, all) && std::rename(fresh.c_str(), place_.file.c_str()) == 0;
  }

  const MetricsPlace place_;
  Descriptor ending_, listener_;
  std::mutex mutex_;  // protects nodes_
  std::vector<const NodeCounters*> nodes_;
  std::mutex writing_;  // protects the file
  std::thread thread_;
};

namespace {

std::shared_ptr<Exporter> exporter_of_process() {
  static std::mutex mutex;
  static std::weak_ptr<Exporter> exporter;
  MetricsPlace place = metrics_in_environment();
  if (place.text.empty()) return nullptr;
  const std::lock_guard lock(mutex);
  std::shared_ptr<Exporter> one = exporter.lock();
  if (!one) exporter = one = std::make_shared<Exporter>(std::move(place));
  return one;
}

}  // namespace

std::string metrics_text(const std::vector<const NodeCounters*>& nodes) {
  std::string text;
  for (int counter = 0; counter < kNumCounters; ++counter) {
    const CounterName& named = kCounterNames[counter];
    const std::string name = fmt::format("ferry_{}{}", named.name, named.grows ? "_total" : "");
    append_head(text, name, named.meaning, named.grows);
    for (const NodeCounters* node : nodes) {
      for (const int rank : node->ranks) {
        if (!has_come(*node, rank)) continue;
        text +=
            fmt::format("{}{{{}}} {}\n", name, labels(*node, rank), node->of(rank).value(counter));
      }
    }
  }
  const char* const waits = "ferry_wait_seconds_total";
  append_head(text, waits, "time that a rank waited for another one; for itself: for the network",
              true);
  for (const NodeCounters* node : nodes) {
    for (const int rank : node->ranks) {
      for (int peer = 0; peer < static_cast<int>(node->head().num_ranks); ++peer) {
        const std::uint64_t ns = node->of(rank).value(kNumCounters + peer);
        if (ns == 0) continue;
        text += fmt::format("{}{{{},for=\"{}\"}} {:.9f}\n", waits, labels(*node, rank), peer,
                            static_cast<double>(ns) / 1e9);
      }
    }
  }
  return text;
}

Metrics::Metrics() : exporter_(exporter_of_process()) {}

Metrics::~Metrics() {
  if (exporter_) exporter_->remove(&node_);
}

void Metrics::show(NodeCounters node) {
  node_ = std::move(node);
  if (exporter_) exporter_->add(&node_);
}

}  // namespace ferry::internal
