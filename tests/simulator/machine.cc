// The machine under a simulation, in place of src/base/waiting.cc, src/memory/segment.cc and
// src/group/leaving.cc: virtual time, memory that may be refused, and a process for each rank.
#include <fmt/format.h>
#include <sys/mman.h>

#include <unistd.h>

#include <algorithm>
#include <new>

#include "base/waiting.h"
#include "ferry/status.h"
#include "group/leaving.h"
#include "group/state.h"
#include "memory/segment.h"
#include "simulator/machine.h"
#include "simulator/simulation.h"

namespace ferry::test {

namespace {

constexpr std::size_t kPage = internal::Segment::kHugePage;  // Segments round up to it

Machine* the_machine = nullptr;

}  // namespace

Machine::Machine() { the_machine = this; }
Machine::~Machine() { the_machine = nullptr; }
Machine& Machine::current() { return *the_machine; }

std::shared_ptr<Memory> Machine::first_mapped(int rank) const {
  const auto first =
      std::ranges::find_if(mappings, [rank](const Mapping& one) { return one.rank == rank; });
  return first == mappings.end() ? nullptr : first->memory;
}

std::shared_ptr<Memory> Machine::last_mapped(int rank) const {
  const auto last = std::find_if(mappings.rbegin(), mappings.rend(),
                                 [rank](const Mapping& one) { return one.rank == rank; });
  return last == mappings.rend() ? nullptr : last->memory;
}

Memory::Memory(std::size_t bytes)
    : number_(++Machine::current().num_memories),
      bytes_((bytes + kPage - 1) / kPage * kPage),
      data_(static_cast<std::byte*>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
  if (data_ == MAP_FAILED) throw std::bad_alloc();
}

Memory::~Memory() { munmap(data_, bytes_); }

}  // namespace ferry::test

namespace ferry::internal {

using test::Kernel;
using test::Machine;
using test::Simulation;

std::int64_t now_ns() noexcept { return Simulation::current().now(); }
std::int64_t running_ns() noexcept {
  Simulation& simulation = Simulation::current();
  const int rank = simulation.running();
  return simulation.now() - (rank < 0 ? 0 : simulation.stopped_ns(rank));
}
void pause_processor() noexcept { Simulation::current().pause(); }
void yield_processor() noexcept { Simulation::current().yield(); }
int current_processor() noexcept { return -1; }  // unknown: each rank has one of its own

void sleep_on(const std::atomic<std::uint32_t>& word, std::uint32_t value,
              std::int64_t wait_ns) noexcept {
  // Relaxed: there is one thread.
  if (word.load(std::memory_order_relaxed) == value) Simulation::current().sleep(&word, wait_ns);
}
void wake(const std::atomic<std::uint32_t>& word) noexcept { Simulation::current().wake(&word); }

// ---- a rank that leaves moves the messages of its own process

void share_progress(GroupState* group) {
  Machine::current().groups[Simulation::current().running()] = group;
}

void unshare_progress(GroupState*) noexcept {
  Machine::current().groups.erase(Simulation::current().running());
}

bool progress_all_here() noexcept {
  return Machine::current().groups.at(Simulation::current().running())->move_messages();
}

std::unique_ptr<Transport> ucx_transport() {
  const Kernel& kernel = *Kernel::of_running_rank();
  return kernel.network().transport(kernel.rank());
}

// ---- segments

namespace {

Error refused(std::size_t bytes, const char* why) {
  return {Code::kSystem, fmt::format("a shared segment of {} bytes was refused: {}", bytes, why)};
}

}  // namespace

std::shared_ptr<Segment> Segment::create(std::size_t bytes) {
  if (Machine::current().refuses_memory()) throw refused(bytes, "no memory");
  const int fd = Kernel::of_running_rank()->open(std::make_shared<test::Memory>(bytes));
  if (fd < 0) throw refused(bytes, "no descriptor");
  return attach(fd, bytes);
}

std::shared_ptr<Segment> Segment::attach(int fd, std::size_t bytes) {
  Kernel& kernel = *Kernel::of_running_rank();
  const auto memory = std::dynamic_pointer_cast<test::Memory>(kernel.file(fd));
  if (!memory || Machine::current().refuses_memory()) {
    kernel.close(fd);
    throw refused(bytes, "it cannot be mapped");
  }
  const std::shared_ptr<Segment> made(new Segment(fd, memory->data(), bytes));
  Machine::current().mappings.push_back({made.get(), kernel.rank(), memory});
  return made;
}

std::uint64_t Segment::id() const {
  const auto& mappings = Machine::current().mappings;
  const auto mine = std::find_if(mappings.begin(), mappings.end(),
                                 [this](const auto& mapping) { return mapping.segment == this; });
  return mine->memory->number();
}

Segment::~Segment() {
  std::erase_if(Machine::current().mappings,
                [this](const auto& mapping) { return mapping.segment == this; });
  close(fd_);
}

bool Segment::commit(std::size_t offset, std::size_t length) noexcept {
  if (offset > bytes_ || length > bytes_ - offset) return false;
  if (Machine::current().refuses_memory()) return false;
  Machine::current().on_commit(Simulation::current().running(), length);
  return true;
}

void Segment::map_in(std::size_t, std::size_t) noexcept {}

}  // namespace ferry::internal
