// The communicators behind HcclComm, found by name, and a rank's place in the operators' group: the
// ranks of an expert-parallel communicator, or, with tensor parallelism, of all that its ranks are
// tied to by theirs. Called by two_stage.cc.
#pragma once

#include <condition_variable>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ferry/cann.h"
#include "ferry/group.h"

namespace ferry::aclnn {

// A rank's place in the group of an operator. Calls run in the order of their turns, on whatever
// streams they are.
class Member {
 public:
  explicit Member(std::function<cann::Communicator()> connect) : connect_(std::move(connect)) {}

  std::uint64_t take_turn();
  // Waits for its turn, joins the group in the first one, and runs.
  cann::Result run(std::uint64_t turn,
                   const std::function<cann::Result(const cann::Communicator&)>& body);

 private:
  std::mutex mutex_;
  std::condition_variable next_;
  std::uint64_t taken_ = 0, done_ = 0;
  std::function<cann::Communicator()> connect_;
  cann::Communicator communicator_;  // of the one whose turn it is
};

struct Domain {
  std::string name;
  std::vector<std::int32_t> devices;               // [ranks]; -1: of another process
  std::vector<Group> groups;                       // [ranks]
  std::uint64_t buffer_bytes = 0;                  // HCCL_BUFFSIZE
  std::shared_ptr<std::vector<Group>> joint = {};  // with tensor parallelism: all of it
  std::map<std::pair<std::int64_t, std::string>, std::shared_ptr<Member>> members = {};  // rank, tp
};

// The member that the attributes name, on this thread's device. Throws cann::internal::Refused.
std::shared_ptr<Member> find_member(const cann::Attributes& attributes,
                                    std::uint64_t& buffer_bytes);

}  // namespace ferry::aclnn
