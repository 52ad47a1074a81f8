// ScriptedRendezvous: a rendezvous that asks a function of the test whether a rank is alive, and is
// another rendezvous otherwise.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bootstrap/rendezvous.h"

namespace ferry::test {

class ScriptedRendezvous final : public internal::Rendezvous {
 public:
  explicit ScriptedRendezvous(std::unique_ptr<internal::Rendezvous> inner)
      : Rendezvous(inner->rank(), inner->nodes()), inner_(std::move(inner)) {}
  std::vector<std::string> all_gather(std::string_view mine, internal::Deadline deadline) override {
    return inner_->all_gather(mine, deadline);
  }
  std::shared_ptr<internal::Segment> share_segment(std::size_t bytes,
                                                   internal::Deadline deadline) override {
    return inner_->share_segment(bytes, deadline);
  }
  bool alive(int peer) noexcept override { return script ? script(peer) : true; }
  int kill(int peer) noexcept override { return inner_->kill(peer); }
  int pid(int peer) const noexcept override { return inner_->pid(peer); }
  std::unique_ptr<internal::Rendezvous> among(const std::vector<int>& members,
                                              const internal::MeetingPlace& place,
                                              internal::Deadline deadline) override {
    return inner_->among(members, place, deadline);
  }
  bool admits() const noexcept override { return false; }
  std::unique_ptr<internal::BootstrapCollectives> await_newcomers(
      internal::Admission& admission, internal::Deadline deadline) override {
    return inner_->await_newcomers(admission, deadline);
  }
  std::unique_ptr<internal::Rendezvous> among(const internal::Admission& admission,
                                              internal::BootstrapCollectives* invited,
                                              internal::Deadline deadline) override {
    return inner_->among(admission, invited, deadline);
  }
  std::shared_ptr<internal::Segment> pass_on(std::shared_ptr<internal::Segment> mine,
                                             std::size_t bytes,
                                             internal::Deadline deadline) override {
    return inner_->pass_on(std::move(mine), bytes, deadline);
  }

  std::function<bool(int peer)> script;

 private:
  std::unique_ptr<internal::Rendezvous> inner_;
};

}  // namespace ferry::test
