// The machine under a simulation, in place of src/base/waiting.cc, src/memory/segment.cc and
// src/group/leaving.cc: virtual time, memory that may be refused, and a process for each rank.
#include <fmt/format.h>
#include <sys/mman.h>

#include <map>

#include "base/waiting.h"
#include "ferry/status.h"
#include "group/leaving.h"
#include "memory/segment.h"
#include "simulator/machine.h"
#include "simulator/simulation.h"

namespace ferry::test {

namespace {

Machine* the_machine = nullptr;

}  // namespace

Machine::Machine() { the_machine = this; }
Machine::~Machine() { the_machine = nullptr; }
Machine& Machine::current() { return *the_machine; }

}  // namespace ferry::test

namespace ferry::internal {

using test::Machine;
using test::Simulation;

std::int64_t now_ns() noexcept { return Simulation::current().now(); }
void pause_processor() noexcept { Simulation::current().pause(); }
void yield_processor() noexcept { Simulation::current().yield(); }

void sleep_on(const std::atomic<std::uint32_t>& word, std::uint32_t value,
              std::int64_t wait_ns) noexcept {
  // Relaxed: there is one thread.
  if (word.load(std::memory_order_relaxed) == value) Simulation::current().sleep(&word, wait_ns);
}
void wake(const std::atomic<std::uint32_t>& word) noexcept { Simulation::current().wake(&word); }

// ---- a rank that leaves moves the messages of its own process

void share_progress(MessageChannel* messages) {
  Machine::current().channels[Simulation::current().running()] = messages;
}

void unshare_progress(MessageChannel*) noexcept {
  Machine::current().channels.erase(Simulation::current().running());
}

bool progress_all_here() noexcept {
  return Machine::current().channels.at(Simulation::current().running())->progress();
}

// ---- segments

namespace {

std::size_t mapped_bytes(std::size_t bytes) {
  return (bytes + Segment::kHugePage - 1) / Segment::kHugePage * Segment::kHugePage;
}

}  // namespace

std::shared_ptr<Segment> Segment::create(std::size_t bytes) {
  void* const data = mmap(nullptr, mapped_bytes(bytes), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) throw Error(Code::kSystem, fmt::format("no {} bytes", bytes));
  ++Machine::current().num_segments;
  return std::shared_ptr<Segment>(new Segment(-1, static_cast<std::byte*>(data), bytes));
}

std::shared_ptr<Segment> Segment::attach(int, std::size_t bytes) { return create(bytes); }

Segment::~Segment() {
  munmap(data_, mapped_bytes(bytes_));
  --Machine::current().num_segments;
}

bool Segment::commit(std::size_t offset, std::size_t length) noexcept {
  if (offset > bytes_ || length > bytes_ - offset) return false;
  return !Machine::current().refuses_memory();
}

void Segment::map_in(std::size_t, std::size_t) noexcept {}

}  // namespace ferry::internal
