// Sends real signals at chosen moments. A process has one trap at a time.
#include "victim.h"

#include <dirent.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <stdexcept>
#include <thread>

namespace ferry::test {
namespace {

constexpr std::size_t kPage = 4096;

struct ArmedTrap {
  std::byte* begin = nullptr;
  std::size_t bytes = 0;
  Board* board = nullptr;
  int signal = 0;
};
ArmedTrap armed;

void spring(int, siginfo_t* info, void*) {
  const auto* const touched = static_cast<std::byte*>(info->si_addr);
  if (touched < armed.begin || touched >= armed.begin + armed.bytes) {
    signal(SIGSEGV, SIG_DFL);  // not ours: die of it
    return;
  }
  mprotect(armed.begin, armed.bytes, PROT_READ | PROT_WRITE);
  strike_self(*armed.board, armed.signal);
}

void* map(std::size_t bytes, int flags) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("no memory for the test");
  return memory;
}

}  // namespace

ExchangeConfig fault_config() {
  return {.max_tokens = 64, .hidden = 512, .num_experts = 12, .top_k = 4};
}

SharedBoard::SharedBoard() : board_(new (map(kPage, MAP_SHARED)) Board{}) {}
SharedBoard::~SharedBoard() { munmap(board_, kPage); }

void SharedBoard::tell() const { board_->told.fetch_add(1, std::memory_order_acq_rel); }

void SharedBoard::await_told(int ranks) const {
  const std::int64_t give_up = now_ns() + 10'000'000'000;
  while (board_->told.load(std::memory_order_acquire) < ranks && now_ns() < give_up)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

std::int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}

void strike_self(Board& board, int signal) {
  board.struck_ns.store(now_ns(),
                        std::memory_order_release);  // partner: the other ranks' check of the delay
  kill(getpid(), signal);
}

Trap::Trap(std::size_t bytes, Board& board, int signal) : bytes_((bytes / kPage + 4) * kPage) {
  data_ = static_cast<std::byte*>(map(bytes_, MAP_PRIVATE));
  const std::size_t half = bytes / 2 / kPage * kPage;
  armed = {data_ + half, bytes_ - half, &board, signal};
}

void Trap::arm() {
  struct sigaction action {};
  action.sa_sigaction = spring;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
  mprotect(armed.begin, armed.bytes, PROT_NONE);
}

Trap::~Trap() { munmap(data_, bytes_); }

std::int64_t shared_memory_in_use() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("Shmem:")) return std::stoll(line.substr(6)) * 1024;
  }
  throw std::runtime_error("no Shmem in /proc/meminfo");
}

std::set<std::string> files_in_dev_shm() {
  std::set<std::string> files;
  DIR* const folder = opendir("/dev/shm");
  if (folder == nullptr) return files;
  while (const dirent* const entry = readdir(folder)) files.insert(entry->d_name);
  closedir(folder);
  return files;
}

}  // namespace ferry::test
