// ExpertMap: which member of an expert-parallel domain owns which expert. Members are the ranks
// that take part, numbered as sources are. Pure data, equal on all members. A column is an expert
// that rows can go to: the routed experts [0, E), then one column for each rank that holds a shared
// expert. Each column whose owner takes part is in columns_of() of exactly one member.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ferry/config.h"

namespace ferry::internal {

class ExpertMap {
 public:
  // `members` are ranks of a domain of `num_ranks`. Throws Error(kInvalidArgument) when an owner is
  // outside [0, num_ranks), expert_rank has the wrong length, expert_ranks or token_ranks are
  // refused (check_roles), or shared experts do not fit the ranks.
  ExpertMap(const ExchangeConfig& config, int num_ranks, std::span<const int> members);

  int num_columns() const noexcept { return static_cast<int>(owner_.size()); }
  int num_members() const noexcept { return static_cast<int>(first_.size()) - 1; }
  // The member that owns the column; -1: the owner does not take part.
  int owner(int column) const noexcept { return owner_[column]; }
  int local(int column) const noexcept { return local_[column]; }
  int num_local(int member) const noexcept { return first_[member + 1] - first_[member]; }
  int max_num_local() const noexcept;

  // The columns of `member`, ascending, which is the order of their local index.
  std::span<const std::int32_t> columns_of(int member) const noexcept {
    return std::span(by_member_).subspan(first_[member], num_local(member));
  }

  // The column of shared expert `shared` for a token of `member`; -1: no rank holds it.
  int shared_column(int member, int shared, std::int64_t token,
                    std::int64_t num_tokens) const noexcept;

 private:
  void add_shared(const ExchangeConfig& config, std::span<const int> members);
  void index_columns();

  SharedRule rule_;
  int num_experts_;                   // routed
  int shared_group_;                  // ranks that hold the same shared expert
  std::vector<std::int32_t> owner_;   // [columns]
  std::vector<std::int32_t> local_;   // [columns]
  std::vector<std::int32_t> shared_;  // [members]: index of the member's shared column; -1: none
  std::vector<std::int32_t> first_;   // [members + 1]: a member's columns begin here in by_member_
  std::vector<std::int32_t> by_member_;
};

}  // namespace ferry::internal
