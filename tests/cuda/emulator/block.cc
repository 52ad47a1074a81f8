// The threads of a block: fibers of one thread of the host, which runs each fiber until it waits
// for others. Fibers and their stacks are kept for the next block.
#undef _FORTIFY_SOURCE  // its longjmp() refuses to change the stack
#include <sched.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <thread>
#include <vector>

#include "cuda/emulator/device.h"

constinit thread_local uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace ferry::emulator {

namespace {

constexpr std::size_t kStackBytes = std::size_t{64} << 10;

[[noreturn]] void fail(const char* what, const char* file = "", unsigned line = 0,
                       const char* other_file = "", unsigned other_line = 0) {
  std::fprintf(stderr, "emulated block %u, thread %u: %s %s:%u %s:%u\n", blockIdx.x, threadIdx.x,
               what, file, line, other_file, other_line);
  std::abort();
}

// A barrier, at which threads wait until all have arrived.
struct Meeting {
  unsigned times = 0;  // how often all had arrived
  unsigned arrived = 0;
  std::source_location place;
};

struct Warp {
  Meeting meeting;
  unsigned living = 0, mask = 0;  // lanes
  // The values of this meeting and of the previous one, which some lanes have not read yet.
  std::uint64_t values[2][32] = {};
  unsigned lanes[2] = {};
};

// One thread of the host.
struct Fiber {
  ucontext_t first;  // where it begins
  jmp_buf at;        // where it goes on
  bool begun = false, living = false, spins = false;
  const Meeting* awaits = nullptr;
  unsigned times = 0;  // Meeting::times at its arrival
  void* memory = nullptr;
};

class Block {
 public:
  ~Block();
  void run(const Launch& launch, const std::function<void()>& thread, bool backwards);
  void meet(const std::source_location& place);
  WarpValues meet_warp(unsigned mask, std::uint64_t value, const std::source_location& place);
  void let_others_run();
  std::byte* shared() { return shared_.data(); }

 private:
  static void fiber_main();
  void add_fiber();
  bool turn(bool backwards);
  void resume(Fiber& fiber);
  void suspend();
  void arrive(Meeting& meeting, unsigned members, const std::source_location& place);
  static void end_if_all_came(Meeting& meeting, unsigned members);
  void leave();
  Warp& warp() { return warps_[threadIdx.x / 32]; }

  std::deque<Fiber> fibers_;
  std::vector<Warp> warps_;
  Meeting meeting_;
  unsigned living_ = 0;
  const std::function<void()>* thread_ = nullptr;
  std::vector<std::byte> shared_;
  Fiber* current_ = nullptr;
  jmp_buf scheduler_;
};

Block& block() {
  static thread_local Block block;
  return block;
}

Block::~Block() {
  for (const Fiber& fiber : fibers_) munmap(fiber.memory, kStackBytes);
}

void Block::fiber_main() {
  for (;;) {
    (*block().thread_)();
    block().leave();
  }
}

// The lowest page of a stack cannot be written, so that an overflow is found.
void Block::add_fiber() {
  Fiber& fiber = fibers_.emplace_back();
  fiber.memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (fiber.memory == MAP_FAILED) fail("no memory for a stack");
  mprotect(fiber.memory, sysconf(_SC_PAGESIZE), PROT_NONE);
  getcontext(&fiber.first);
  fiber.first.uc_stack.ss_sp = fiber.memory, fiber.first.uc_stack.ss_size = kStackBytes;
  makecontext(&fiber.first, fiber_main, 0);
}

void Block::run(const Launch& launch, const std::function<void()>& thread, bool backwards) {
  while (fibers_.size() < launch.block) add_fiber();
  warps_.assign((launch.block + 31) / 32, {});
  shared_.assign(launch.shared_bytes, std::byte{0xa5});
  meeting_ = {}, living_ = launch.block, thread_ = &thread;
  for (unsigned i = 0; i < launch.block; ++i) {
    fibers_[i].living = true, fibers_[i].awaits = nullptr;
    warps_[i / 32].living |= 1U << i % 32;
  }
  for (unsigned idle = 0; living_ > 0;) {
    idle = turn(backwards) ? 0 : idle + 1;
    if (idle % 16 == 15) std::this_thread::sleep_for(std::chrono::microseconds(50));
    if (idle > 0) sched_yield();
  }
}

// Runs each thread that can continue. False: all of them only tested whether they can.
bool Block::turn(bool backwards) {
  bool any = false, moved = false;
  for (unsigned i = 0; i < blockDim.x; ++i) {
    const unsigned number = backwards ? blockDim.x - 1 - i : i;
    Fiber& fiber = fibers_[number];
    if (!fiber.living || (fiber.awaits && fiber.awaits->times == fiber.times)) continue;
    fiber.awaits = nullptr, fiber.spins = false;
    threadIdx = {number, 0, 0};
    resume(fiber);
    any = true, moved = moved || !fiber.spins;
  }
  if (!any)
    fail("its threads wait for each other for ever; some do at", meeting_.place.file_name(),
         meeting_.place.line());
  return moved;
}

[[gnu::noinline]] void Block::resume(Fiber& fiber) {
  current_ = &fiber;
  if (_setjmp(scheduler_) != 0) return;
  if (fiber.begun) _longjmp(fiber.at, 1);
  fiber.begun = true;
  setcontext(&fiber.first);
}

[[gnu::noinline]] void Block::suspend() {
  if (_setjmp(current_->at) == 0) _longjmp(scheduler_, 1);
}

void Block::end_if_all_came(Meeting& meeting, unsigned members) {
  if (meeting.arrived == 0 || meeting.arrived < members) return;
  meeting.arrived = 0, ++meeting.times;
}

void Block::arrive(Meeting& meeting, unsigned members, const std::source_location& place) {
  if (meeting.arrived++ == 0) meeting.place = place;
  if (meeting.place.line() != place.line())
    fail("threads meet at two places", place.file_name(), place.line(), meeting.place.file_name(),
         meeting.place.line());
  current_->awaits = &meeting, current_->times = meeting.times;
  end_if_all_came(meeting, members);
  if (meeting.times == current_->times) suspend();
}

// A thread that has ended counts as arrived.
void Block::leave() {
  Warp& mine = warp();
  mine.living &= ~(1U << lane()), --living_, current_->living = false;
  end_if_all_came(meeting_, living_);
  end_if_all_came(mine.meeting, std::popcount(mine.mask & mine.living));
  suspend();
}

void Block::meet(const std::source_location& place) { arrive(meeting_, living_, place); }

WarpValues Block::meet_warp(unsigned mask, std::uint64_t value, const std::source_location& place) {
  Warp& mine = warp();
  const unsigned odd = mine.meeting.times & 1;
  if (mine.meeting.arrived == 0) mine.mask = mask, mine.lanes[odd] = 0;
  if (mine.mask != mask || !(mask >> lane() & 1))
    fail("lanes meet with different masks", place.file_name(), place.line());
  mine.values[odd][lane()] = value, mine.lanes[odd] |= 1U << lane();
  arrive(mine.meeting, std::popcount(mask & mine.living), place);
  return {mine.values[odd], mine.lanes[odd]};
}

void Block::let_others_run() {
  current_->spins = true;
  suspend();
}

}  // namespace

// Blocks and threads run in ascending or descending order, so that no kernel can depend on it. Some
// kernels pause between blocks, while the host and other streams continue.
void run_grid(const Launch& launch, const std::function<void()>& thread) {
  static std::atomic<unsigned> launches{0};  // only distinct numbers are needed
  const unsigned number = launches.fetch_add(1, std::memory_order_relaxed);
  const bool backwards = number % 2 == 1;
  const unsigned pause = number * 2654435761U % (4 * launch.grid);
  gridDim = {launch.grid, 1, 1}, blockDim = {launch.block, 1, 1};
  for (unsigned i = 0; i < launch.grid; ++i) {
    blockIdx = {backwards ? launch.grid - 1 - i : i, 0, 0};
    block().run(launch, thread, (i % 2 == 1) != backwards);
    if (i == pause) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

void meet_block(const std::source_location& place) { block().meet(place); }
WarpValues meet_warp(unsigned mask, std::uint64_t value, const std::source_location& place) {
  return block().meet_warp(mask, value, place);
}
void let_others_run() { block().let_others_run(); }
std::byte* shared_bytes() { return block().shared(); }

}  // namespace ferry::emulator
