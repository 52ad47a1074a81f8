// CANN's MoE operators on ferry: MoeDistributeDispatch, MoeDistributeCombine and
// MoeDistributeCombineAddRmsNorm, versions 1 to 4, one function each, parameters one-to-one.
//
//   ferry::cann::Communicator communicator(group, {.group_ep = "ep"});
//   ferry::cann::Attributes attributes{.group_ep = "ep", .ep_world_size = 8, .ep_rank_id = rank,
//                                      .moe_expert_num = 256};
//   moe_distribute_dispatch(communicator, {.attributes = attributes, .x = ..., ...});
//   (run the experts on expand_x)
//   moe_distribute_combine(communicator, {.attributes = attributes, .expand_x = ..., ...});
//
// docs/cann.md has the table of parameters, and the extensions and differences. MegaMoe, which
// calls the experts too: ferry/cann_mega_moe.h.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ferry/cann_parameters.h"
#include "ferry/export.h"
#include "ferry/group.h"
#include "ferry/status.h"

namespace ferry::cann {

namespace internal {
class ExchangeCache;
}

// The operators' return values.
enum class StatusCode : std::int32_t {
  kSuccess = 0,
  kNullPointer = 161001,       // a tensor is missing
  kInvalidParameter = 161002,  // a value or type that is wrong on its own, or differs between ranks
  // The group broke (a rank died, departed, or missed the deadline) or was destroyed; or the
  // operating system refused something.
  kRuntimeError = 361001,
  // Values do not fit together, memory or room for rows is too small, or another rank refused.
  kTilingError = 561002,
};

struct [[nodiscard]] Result {
  StatusCode code = StatusCode::kSuccess;
  Status status = {};  // ferry's status: the message, the culprit, whether the group is usable

  bool ok() const noexcept { return code == StatusCode::kSuccess; }
  const std::string& message() const noexcept { return status.message(); }
};

// The code of a status of ferry.
FERRY_EXPORT StatusCode status_code(Code code) noexcept;

struct CommunicatorOptions {
  std::string group_ep = {};  // the names that Attributes must have
  std::string group_tp = {};
  int workers = 1;  // threads that move rows for this rank, the caller included
};

// The group behind group_ep and group_tp, and the exchanges that its operators have needed so far:
// one for each set of attributes, shapes and wire, made by all ranks together in the first call
// that needs it. Copies share it. One caller at a time.
class FERRY_EXPORT Communicator {
 public:
  Communicator() = default;
  // A group of ep * max(tp, 1) ranks; rank ep_rank * tp + tp_rank.
  explicit Communicator(Group group, CommunicatorOptions options = {});

  // Only for ferry's own modules.
  const std::shared_ptr<internal::ExchangeCache>& cache() const noexcept { return cache_; }

 private:
  std::shared_ptr<internal::ExchangeCache> cache_;
};

// Collective: every rank of the group makes the same calls in the same order. A call that is
// refused on one rank is refused on all, and the next call works. One error is of one rank alone:
// kTilingError if a token names an expert twice and more rows arrive than the outputs have room
// for.
FERRY_EXPORT Result moe_distribute_dispatch(const Communicator& communicator,
                                            const DispatchArgs& args) noexcept;
FERRY_EXPORT Result moe_distribute_combine(const Communicator& communicator,
                                           const CombineArgs& args) noexcept;
FERRY_EXPORT Result moe_distribute_combine_add_rms_norm(const Communicator& communicator,
                                                        const CombineAddRmsNormArgs& args) noexcept;

// Call in place of an operator whose arguments a front above this one refuses. The other ranks get
// kPeerRejected with the message of `why`, and this rank gets `why`. `args` has the part of the
// call that could be read: the attributes, and the extents of x (expand_x) and expert_ids, 0 where
// unknown. It selects the exchange that the other ranks use.
FERRY_EXPORT Result refuse_dispatch(const Communicator& communicator, const DispatchArgs& args,
                                    const Status& why) noexcept;
FERRY_EXPORT Result refuse_combine(const Communicator& communicator, const CombineArgs& args,
                                   const Status& why) noexcept;

// A: rows that expand_x must have room for on this rank (times max(tp, 1)), as the operators define
// it. Depends on the attributes, the shapes of x and expert_ids, and whether elastic_info is given;
// throws Error when they are not legal.
FERRY_EXPORT std::int64_t max_rows(const DispatchArgs& args);

// For the operators' GetWorkspaceSize: returns the bytes of shared memory that this rank needs for
// such calls, and checks the attributes. Tensors may be null; their shapes and types count.
FERRY_EXPORT Result workspace_bytes(const DispatchArgs& args, WindowBytes& bytes) noexcept;
FERRY_EXPORT Result workspace_bytes(const CombineArgs& args, WindowBytes& bytes) noexcept;

// For the operators' first stage: does the same, and checks which tensors are given, their shapes
// and types. These checks need neither the data nor the other ranks.
FERRY_EXPORT Result check(const DispatchArgs& args, WindowBytes& bytes) noexcept;
FERRY_EXPORT Result check(const CombineArgs& args, WindowBytes& bytes) noexcept;
FERRY_EXPORT Result check(const CombineAddRmsNormArgs& args, WindowBytes& bytes) noexcept;

}  // namespace ferry::cann
