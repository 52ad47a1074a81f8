// The communicators behind HcclComm, which are found by name, and the members of the groups in
// which operators run. Such a group has the ranks of an expert-parallel communicator; with tensor
// parallelism it also has the ranks of the communicators that the tensor-parallel ones connect to
// it.
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

// A rank as a member of the group of an operator. Its calls run one at a time, in the order of
// their turns, also where they are on different streams.
class Member {
 public:
  explicit Member(std::function<cann::Communicator()> connect) : connect_(std::move(connect)) {}

  std::uint64_t take_turn();
  // Waits for the turn and runs `body`. The first turn joins the group.
  cann::Result run(std::uint64_t turn,
                   const std::function<cann::Result(const cann::Communicator&)>& body);

 private:
  std::mutex mutex_;
  std::condition_variable next_;
  std::uint64_t taken_ = 0, done_ = 0;
  std::function<cann::Communicator()> connect_;
  cann::Communicator communicator_;  // used by the call whose turn it is
};

struct Domain {
  std::string name;
  std::vector<std::int32_t> devices;               // [ranks]; -1: the rank is of another process
  std::vector<Group> groups;                       // [ranks]
  std::uint64_t buffer_bytes = 0;                  // HCCL_BUFFSIZE
  std::shared_ptr<std::vector<Group>> joint = {};  // tensor parallelism: [ranks of all domains]
  // The key is the rank and the name of its tensor-parallel domain.
  std::map<std::pair<std::int64_t, std::string>, std::shared_ptr<Member>> members = {};
};

// The member that the attributes name, on this thread's device. Throws cann::internal::Refused.
std::shared_ptr<Member> find_member(const cann::Attributes& attributes,
                                    std::uint64_t& buffer_bytes);

}  // namespace ferry::aclnn
