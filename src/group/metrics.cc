// The thread that writes the file, or replies at the port. A scrape is one connection: a request,
// the text, the end.
#include "group/metrics.h"

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
#include <fstream>
#include <mutex>
#include <thread>

#include "base/descriptor.h"
#include "base/environment.h"
#include "ferry/status.h"

namespace ferry::internal {
namespace {

constexpr int kWriteMs = 1000;  // between two states of the file
constexpr timeval kScrapeLimit{1, 0};

std::string labels(const NodeCounters& node, int rank) {
  return fmt::format("group=\"{:016x}\",rank=\"{}\"", node.head().group, rank);
}

void append_head(std::string& text, const std::string& name, const char* meaning, bool grows) {
  text +=
      fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, meaning, name, grows ? "counter" : "gauge");
}

Error refused(const MetricsPlace& place, const std::string& what) {
  return Error(Code::kSystem,
               fmt::format("FERRY_METRICS={}: {}: {}", place.text, what, std::strerror(errno)));
}

// This host's processes only: the figures of a job are not for others.
Descriptor listen_at(const MetricsPlace& place) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int yes = 1;
  setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  at.sin_port = htons(static_cast<in_port_t>(place.port));
  if (bind(socket.fd(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0 ||
      listen(socket.fd(), SOMAXCONN) != 0)
    throw refused(place, "cannot listen");
  return socket;
}

void answer(int listener, const std::string& text) {
  const Descriptor scrape(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  if (!scrape) return;
  setsockopt(scrape.fd(), SOL_SOCKET, SO_RCVTIMEO, &kScrapeLimit, sizeof kScrapeLimit);
  setsockopt(scrape.fd(), SOL_SOCKET, SO_SNDTIMEO, &kScrapeLimit, sizeof kScrapeLimit);
  char request[4096];  // whatever it is
  if (recv(scrape.fd(), request, sizeof request, 0) <= 0) return;
  const std::string all = fmt::format(
      "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\r\n{}",
      text.size(), text);
  for (std::size_t sent = 0; sent < all.size();) {
    const ssize_t more = send(scrape.fd(), all.data() + sent, all.size() - sent, MSG_NOSIGNAL);
    if (more <= 0) return;
    sent += static_cast<std::size_t>(more);
  }
}

}  // namespace

class Exporter {
 public:
  explicit Exporter(MetricsPlace place)
      : place_(std::move(place)), ending_(eventfd(0, EFD_CLOEXEC)) {
    if (place_.port > 0) listener_ = listen_at(place_);
    if (place_.port == 0 && !write_file()) throw refused(place_, "cannot write");
    sigset_t all, before;  // signals are for the program's own threads
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
      if (waited[1].revents != 0) answer(listener_.fd(), text());
      write_file();
    }
  }

  std::string text() {
    const std::lock_guard lock(mutex_);
    return metrics_text(nodes_);
  }

  // In one step: a reader sees a whole state.
  bool write_file() {
    if (place_.port > 0) return true;
    const std::string all = text();
    const std::lock_guard lock(writing_);
    const std::string fresh = place_.file + ".new";
    return (std::ofstream(fresh, std::ios::trunc) << all).flush() &&
           std::rename(fresh.c_str(), place_.file.c_str()) == 0;
  }

  const MetricsPlace place_;
  Descriptor ending_, listener_;
  std::mutex mutex_;  // of what follows
  std::vector<const NodeCounters*> nodes_;
  std::mutex writing_;  // of the file
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
      for (const int rank : node->ranks)
        text +=
            fmt::format("{}{{{}}} {}\n", name, labels(*node, rank), node->of(rank).value(counter));
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
