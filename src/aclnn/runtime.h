// The parts of CANN's runtime that the operators use: the message of the last failure of a thread,
// the device of a thread, and streams.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "ferry/aclnn.h"

namespace ferry::aclnn {

// Keeps the message for aclGetRecentErrMsg of this thread; returns the code.
int fail(int code, const std::string& message);
// The device of this thread.
std::int32_t current_device();

// Waits until now() is true. The code that makes it true ends at a deadline and notifies. (A wait
// without a time limit would need a symbol of g++ 12's library, which the portable wheel must not
// need.)
template <typename Condition>
void wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                const Condition& now) {
  while (!changed.wait_for(lock, std::chrono::seconds(1), now)) {
  }
}

// The outcome of queued work.
struct Outcome {
  int code = ACL_SUCCESS;
  std::string message = {};
};

// A queue whose entries run in order, on a thread of the stream.
class Stream {
 public:
  Stream() : worker_([this] { work(); }) {}
  ~Stream();  // waits until the queue is empty
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void enqueue(std::function<Outcome()> work);
  // Waits until the queue is empty, for at most `timeout_ms`; -1: without a limit. Returns the
  // first failure since the last call, or ACL_ERROR_RT_STREAM_SYNC_TIMEOUT.
  Outcome synchronize(std::int32_t timeout_ms);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<Outcome()>> queue_;  // the first entry is running
  Outcome failed_;
  bool closing_ = false;
  std::thread worker_;
};

}  // namespace ferry::aclnn
