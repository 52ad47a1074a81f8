// MessageChannel over UCX between processes, by TCP on this host: under chaos too; a peer that is
// killed, a peer that leaves, leaks, and UCX's effects on the process.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "base/clock.h"
#include "bootstrap/forked.h"
#include "network/chaos_transport.h"
#include "network/message_channel.h"
#include "network/test_messages.h"
#include "network/transport.h"

namespace ferry::test {
namespace {

using internal::Deadline;
using internal::Forked;
using internal::in_processes;
using internal::MessageChannel;
using internal::now_ns;
using internal::open_descriptors;
using internal::Transport;
using internal::ucx_transport;

constexpr std::uint64_t kJob = 77;
constexpr std::uint64_t kSeed = 5;
constexpr int kMaxRanks = 4;

// Memory that the processes of a test share: addresses, and how far each rank is.
struct Board {
  struct Place {
    std::atomic<int> round;
    std::atomic<int> open;  // how often it has called let_in()
    std::size_t bytes;
    char address[1024];
  };
  Place places[kMaxRanks];
};

class SharedBoard {
 public:
  SharedBoard()
      : board_(static_cast<Board*>(mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE,
                                        MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~SharedBoard() { munmap(board_, sizeof(Board)); }
  SharedBoard(const SharedBoard&) = delete;
  SharedBoard& operator=(const SharedBoard&) = delete;

  void post(int rank, const std::string& address) {
    Board::Place& place = board_->places[rank];
    place.bytes = address.copy(place.address, sizeof(place.address));
    place.round.fetch_add(1, std::memory_order_release);
  }
  std::string address(int rank, int round) {
    wait(rank, round);
    return {board_->places[rank].address, board_->places[rank].bytes};
  }
  // Waits until all ranks have come here as often as `rank`.
  void let_in(int rank, int size) {
    const int times = board_->places[rank].open.fetch_add(1, std::memory_order_acq_rel) + 1;
    for (int peer = 0; peer < size; ++peer) wait_for(board_->places[peer].open, times);
  }
  // Waits until the rank has posted for the round-th time.
  void wait(int rank, int round) { wait_for(board_->places[rank].round, round); }

 private:
  static void wait_for(const std::atomic<int>& counter, int value) {
    while (counter.load(std::memory_order_acquire) < value)
      std::this_thread::sleep_for(std::chrono::microseconds(200));
  }

  Board* board_;
};

// A rank: its message channel over UCX, connected with all others.
struct Rank {
  Rank(SharedBoard& board, int rank, int size, int round = 1, bool chaos = false)
      : reader(kSeed, rank), messages(make_transport(rank, chaos), rank, size, kJob) {
    board.post(rank, messages.address());
    std::vector<std::string> addresses;
    for (int peer = 0; peer < size; ++peer) addresses.push_back(board.address(peer, round));
    messages.let_in(addresses);
    board.let_in(rank, size);
    std::map<int, std::string> peers;
    for (int peer = 0; peer < size; ++peer) {
      if (peer != rank) peers[peer] = addresses[static_cast<std::size_t>(peer)];
    }
    messages.connect(peers);
  }
  static std::unique_ptr<Transport> make_transport(int rank, bool chaos) {
    setenv("UCX_TLS", "tcp", 1);
    setenv("FERRY_SOCKET_IFNAME", "lo", 1);
    if (!chaos) return ucx_transport();
    return std::make_unique<ChaosTransport>(ucx_transport(),
                                            kSeed + static_cast<std::uint64_t>(rank));
  }

  bool progress() { return reader.progress(messages); }
  void progress_until(const std::function<bool()>& done) {
    for (const Deadline deadline = Deadline::after(std::chrono::seconds(50));
         !done() && !deadline.passed();) {
      if (!progress()) messages.sleep(1000);
    }
  }
  void send(int peer, std::uint64_t number) {
    send_message(messages, peer, test_message(kSeed, {reader.rank(), peer}, number), [this] {
      if (!progress()) messages.sleep(1000);
    });
  }
  void read_to(std::uint64_t total) {
    progress_until([&] { return reader.total() >= total && messages.all_sent(); });
  }

  MessageReader reader;
  MessageChannel messages;
};

std::string text_of(const MessageReader& reader) {
  return fmt::format("{} read, {} wrong, {} lost", reader.total(), reader.wrong(),
                     reader.lost().size());
}

// ---- every message once, whole and in order

std::string exchange_messages(SharedBoard& board, int rank, bool chaos) {
  constexpr int kRanks = 3;
  constexpr std::uint64_t kMessageCount = 3000;
  Rank self(board, rank, kRanks, 1, chaos);
  for (std::uint64_t number = 0; number < kMessageCount; ++number) {
    for (int peer = 0; peer < kRanks; ++peer) {
      if (peer != rank) self.send(peer, number);
    }
    self.progress();
  }
  self.read_to((kRanks - 1) * kMessageCount);
  // No rank leaves before all ranks have read.
  board.post(rank, "");
  for (int peer = 0; peer < kRanks; ++peer) board.wait(peer, 2);
  return text_of(self.reader) + " over " + self.messages.describe();
}

TEST(UcxTransport, MessagesBetweenProcessesComeOnceWholeAndInOrder) {
  SharedBoard board;
  EXPECT_THAT(
      in_processes({0, 1, 2}, [&](int rank) { return exchange_messages(board, rank, false); }),
      testing::Each(testing::MatchesRegex("6000 read, 0 wrong, 0 lost over UCX .* tcp/lo")));
}

TEST(UcxTransport, MessagesComeOnceWholeAndInOrderUnderChaos) {
  SharedBoard board;
  EXPECT_THAT(
      in_processes({0, 1, 2}, [&](int rank) { return exchange_messages(board, rank, true); }),
      testing::Each(testing::StartsWith("6000 read, 0 wrong, 0 lost")));
}

// ---- peers that end

// A rank that waits for the loss of the others, and returns how long after `began_ns` it was
// reported.
std::string mourn(SharedBoard& board, std::atomic<std::int64_t>& began_ns) {
  Rank self(board, 0, 2);
  self.send(1, 0);
  self.read_to(1);
  board.post(0, "");
  self.progress_until([&] { return !self.reader.lost().empty(); });
  if (self.reader.lost().empty()) return "no loss";
  const std::int64_t late_ns = now_ns() - began_ns.load(std::memory_order_acquire);
  return fmt::format("{} ms, rank {}: {}", late_ns / 1'000'000, self.reader.lost()[0].first,
                     self.reader.lost()[0].second);
}

TEST(UcxTransport, AKilledPeerIsLostWithinASecond) {
  SharedBoard board;
  void* shared = mmap(nullptr, 64, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto& began_ns = *new (shared) std::atomic<std::int64_t>(0);
  Forked waiter([&] { return mourn(board, began_ns); });
  Forked victim([&] {
    Rank self(board, 1, 2);
    self.send(0, 0);
    self.progress_until([] { return false; });
    return std::string();
  });
  board.wait(0, 2);
  began_ns.store(now_ns(), std::memory_order_release);
  kill(victim.pid(), SIGKILL);
  const std::string result = waiter.result();
  EXPECT_THAT(result, testing::HasSubstr("rank 1: the connection to it ended"));
  EXPECT_LT(std::atoi(result.c_str()), 1000) << result;
  munmap(shared, 64);
}

TEST(UcxTransport, LastMessagesOfAPeerThatLeavesAreRead) {
  constexpr std::uint64_t kMessageCount = 300;
  SharedBoard board;
  Forked reader([&] {
    Rank self(board, 0, 2);
    self.progress_until([&] { return !self.reader.lost().empty(); });
    return text_of(self.reader);
  });
  Forked leaver([&] {
    Rank self(board, 1, 2);
    for (std::uint64_t number = 0; number < kMessageCount; ++number) self.send(0, number);
    return std::string("left");
  });
  EXPECT_EQ(leaver.result(), "left");
  EXPECT_EQ(reader.result(), fmt::format("{} read, 0 wrong, 1 lost", kMessageCount));
}

// ---- leaks

long resident_kib() {
  long pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

std::string growth(int descriptors, long kib) {
  const int more_descriptors = open_descriptors() - descriptors;
  const long more_kib = resident_kib() - kib;
  return fmt::format("{} descriptors, {} MiB", more_descriptors, more_kib >> 10);
}

// AddressSanitizer keeps freed memory, and finds leaks itself.
void expect_nothing_left(const std::string& grown) {
#ifdef __SANITIZE_ADDRESS__
  constexpr int kMostMib = 300;
#else
  constexpr int kMostMib = 8;
#endif
  EXPECT_THAT(grown, testing::StartsWith("0 descriptors"));
  EXPECT_LT(std::atoi(grown.substr(grown.find(',') + 2).c_str()), kMostMib) << grown;
}

std::string cycle(SharedBoard& board, int rank) {
  constexpr int kCycles = 50, kWarmUp = 10;
  int descriptors = 0;
  long kib = 0;
  for (int round = 0; round < kCycles + kWarmUp; ++round) {
    if (round == kWarmUp) {
      descriptors = open_descriptors();
      kib = resident_kib();
    }
    // Posts twice a round: its address, and that it has read.
    Rank self(board, rank, 2, 2 * round + 1);
    for (std::uint64_t number = 0; number < 20; ++number) self.send(1 - rank, number);
    self.read_to(20);
    board.post(rank, "");
    board.wait(1 - rank, 2 * round + 2);
  }
  return growth(descriptors, kib);
}

TEST(UcxTransport, CreatingAndDestroyingLeavesNothing) {
  SharedBoard board;
  for (const std::string& grown :
       in_processes({0, 1}, [&](int rank) { return cycle(board, rank); }))
    expect_nothing_left(grown);
}

std::string many_messages(SharedBoard& board, int rank) {
  constexpr std::uint64_t kWarmUp = 2000, kMessageCount = 10'000;
  Rank self(board, rank, 2);
  int descriptors = 0;
  long kib = 0;
  for (std::uint64_t number = 0; number < kWarmUp + kMessageCount; ++number) {
    if (number == kWarmUp) {
      descriptors = open_descriptors();
      kib = resident_kib();
    }
    self.send(1 - rank, number);
    self.progress_until([&] { return self.reader.total() + 50 > number; });
  }
  self.read_to(kWarmUp + kMessageCount);
  board.post(rank, "");
  board.wait(1 - rank, 2);
  return growth(descriptors, kib);
}

TEST(UcxTransport, ManyMessagesLeaveNothing) {
  SharedBoard board;
  for (const std::string& grown :
       in_processes({0, 1}, [&](int rank) { return many_messages(board, rank); }))
    expect_nothing_left(grown);
}

// ---- the process around it

TEST(UcxTransport, SignalHandlersStayTheProgramsOwn) {
  Forked program([] {
    signal(SIGSEGV, [](int) { _exit(3); });
    struct sigaction before {
    }, after{};
    sigaction(SIGSEGV, nullptr, &before);
    ucx_transport();
    sigaction(SIGSEGV, nullptr, &after);
    return std::string(before.sa_handler == after.sa_handler ? "same" : "changed");
  });
  EXPECT_EQ(program.result(), "same");
}

TEST(UcxTransport, AnInterfaceThatIsNotThereIsNamedWithThoseThatAre) {
  Forked program([] {
    unsetenv("UCX_NET_DEVICES");
    setenv("FERRY_SOCKET_IFNAME", "lo,nowhere0", 1);
    ucx_transport();
    return std::string("made");
  });
  EXPECT_THAT(program.result(), testing::MatchesRegex("invalid_argument: .*'nowhere0'.* lo.*"));
}

}  // namespace
}  // namespace ferry::test
