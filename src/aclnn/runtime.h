// What stands around the operators in a program for CANN: the message of the last failure, the
// device of a thread, and streams. Called by hccl.cc and two_stage.cc.
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

// Waits until `now` is true; whoever makes it true ends at a deadline and notifies. (The wait
// without a time is a symbol of g++ 12's library, which the portable wheel must not ask for.)
template <typename Condition>
void wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                const Condition& now) {
  while (!changed.wait_for(lock, std::chrono::seconds(1), now)) {
  }
}

// An outcome of queued work.
struct Outcome {
  int code = ACL_SUCCESS;
  std::string message = {};
};

// An ordered queue, worked off by a thread of its own.
class Stream {
 public:
  Stream() : worker_([this] { work(); }) {}
  ~Stream();  // when the queue is empty
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void enqueue(std::function<Outcome()> work);
  // Waits for all that is queued, at most `timeout_ms`, -1: as long as it takes. The first failure
  // since the last call, or kTooLate.
  Outcome synchronize(std::int32_t timeout_ms);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<Outcome()>> queue_;  // the first one is being worked on
  Outcome failed_;
  bool closing_ = false;
  std::thread worker_;
};

}  // namespace ferry::aclnn
