// What a rank asks of the machine while it waits: the time, a pause, a turn for others, sleep until
// a word changes. Alone in a file that is compiled alone, since tests/simulator puts virtual time
// and fibers in its place (docs/protocol.md, "Whole runs from a seed"). Called by clock.h and by
// the wait loop of src/group.
#pragma once

#include <atomic>
#include <cstdint>

namespace ferry::internal {

// Of a clock that only goes on.
std::int64_t now_ns() noexcept;

// The time in which this process ran, as deadlines count it. What lies between two looks counts for
// kLongestLookNs at most: in a longer time the process was stopped, maybe with its whole job, or
// waited for nobody.
inline constexpr std::int64_t kLongestLookNs = 200'000'000;
std::int64_t running_ns() noexcept;

// Between two looks at a word in memory.
void pause_processor() noexcept;
void yield_processor() noexcept;

// Sleeps until wake(word), at most `wait_ns`, unless `word` is not `value` by then. Both work
// between processes that share the word.
void sleep_on(const std::atomic<std::uint32_t>& word, std::uint32_t value,
              std::int64_t wait_ns) noexcept;
void wake(const std::atomic<std::uint32_t>& word) noexcept;

}  // namespace ferry::internal
