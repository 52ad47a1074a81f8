// The system calls of a wait: they read the time, pause, yield to other threads, and sleep until a
// word changes. They are compiled as a file of their own, because tests/simulator replaces them by
// virtual time and fibers (docs/protocol.md, "Whole runs from a seed").
#pragma once

#include <atomic>
#include <cstdint>

namespace ferry::internal {

// The time of a monotonic clock.
std::int64_t now_ns() noexcept;

// The time in which this process ran, as deadlines count it. The time between two calls counts for
// at most kLongestLookNs. If it was longer, the process was stopped, maybe with its whole job, or
// was in no wait.
inline constexpr std::int64_t kLongestLookNs = 200'000'000;
std::int64_t running_ns() noexcept;

// A wait calls these between two reads of a word in memory.
void pause_processor() noexcept;
void yield_processor() noexcept;

// The number of the processor on which this thread runs now, or -1 if it is unknown.
int current_processor() noexcept;

// Sleeps until wake(word), but at most `wait_ns`. Does not sleep if `word` is not `value`. Both
// functions work between processes that share the word.
void sleep_on(const std::atomic<std::uint32_t>& word, std::uint32_t value,
              std::int64_t wait_ns) noexcept;
void wake(const std::atomic<std::uint32_t>& word) noexcept;

}  // namespace ferry::internal
