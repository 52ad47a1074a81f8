#include "simulator/meeting.h"

#include <fmt/format.h>

#include "bootstrap/agree.h"

namespace ferry::test {

using internal::Deadline;
using internal::Segment;

class Meeting::Seat final : public internal::Rendezvous {
 public:
  Seat(Meeting& meeting, int rank) : Rendezvous(rank, meeting.nodes_), meeting_(meeting) {}
  ~Seat() override {
    meeting_.left_[static_cast<std::size_t>(rank())] = true;
    meeting_.simulation_.wake(&meeting_);
  }

  std::vector<std::string> all_gather(std::string_view mine, Deadline deadline) override {
    if (meeting_.failure_) throw *meeting_.failure_;
    const std::uint64_t gather = meeting_.num_gathers_;
    meeting_.texts_[static_cast<std::size_t>(rank())] = mine;
    meeting_.came_[static_cast<std::size_t>(rank())] = true;
    if (++meeting_.num_came_ == size()) return finish();
    while (meeting_.num_gathers_ == gather) wait(deadline);
    return *meeting_.gathered_;
  }

  std::shared_ptr<Segment> share_segment(std::size_t bytes, Deadline deadline) override {
    internal::check_same_bytes(all_gather(std::to_string(bytes), deadline));
    if (rank() == 0) {
      for (int node = 0; node < internal::num_nodes(nodes()); ++node)
        meeting_.new_.push_back(Segment::create(bytes));
      meeting_.segments_.assign(meeting_.new_.begin(), meeting_.new_.end());
    }
    internal::check_no_problem(all_gather("", deadline));
    std::shared_ptr<Segment> mine =
        meeting_.segments_[static_cast<std::size_t>(nodes()[static_cast<std::size_t>(rank())])]
            .lock();
    if (++meeting_.num_taken_ == size()) {
      meeting_.new_.clear();
      meeting_.num_taken_ = 0;
    }
    return mine;
  }

  bool alive(int peer) noexcept override {
    const bool here =
        nodes()[static_cast<std::size_t>(peer)] == nodes()[static_cast<std::size_t>(rank())];
    return !here || !meeting_.simulation_.dead(peer);
  }
  int pid(int) const noexcept override { return 0; }

 private:
  std::vector<std::string> finish() {
    meeting_.gathered_ = std::make_shared<const std::vector<std::string>>(meeting_.texts_);
    meeting_.came_.assign(meeting_.came_.size(), false);
    meeting_.num_came_ = 0;
    ++meeting_.num_gathers_;
    meeting_.simulation_.progressed();
    meeting_.simulation_.wake(&meeting_);
    return *meeting_.gathered_;
  }

  void wait(Deadline deadline) {
    if (meeting_.failure_) throw *meeting_.failure_;
    int gone = meeting_.first_absent([this](int peer) { return meeting_.simulation_.dead(peer); });
    if (gone < 0)  // whoever left did so later, maybe for that
      gone = meeting_.first_absent(
          [this](int peer) { return meeting_.left_[static_cast<std::size_t>(peer)]; });
    if (gone >= 0) fail(Error(Code::kPeerLost, fmt::format("rank {} is gone", gone), gone));
    if (deadline.passed()) {
      const int late = meeting_.first_absent([](int) { return true; });
      fail(Error(Code::kTimeout, fmt::format("rank {} did not come", late), late));
    }
    constexpr int kLookMs = 50;
    meeting_.simulation_.sleep(&meeting_, deadline.remaining_ms(kLookMs) * 1'000'000LL + 1'000);
  }

  [[noreturn]] void fail(const Error& why) {
    meeting_.failure_ = why;
    meeting_.simulation_.wake(&meeting_);
    throw why;
  }

  Meeting& meeting_;
};

Meeting::Meeting(Simulation& simulation, std::vector<int> nodes)
    : simulation_(simulation),
      nodes_(std::move(nodes)),
      texts_(nodes_.size()),
      came_(nodes_.size()),
      left_(nodes_.size()) {}

std::unique_ptr<internal::Rendezvous> Meeting::seat(int rank) {
  return std::make_unique<Seat>(*this, rank);
}

std::shared_ptr<Segment> Meeting::last_segment(int node) const {
  return segments_.empty() ? nullptr : segments_[static_cast<std::size_t>(node)].lock();
}

// Of the ranks that have not come; -1: none.
int Meeting::first_absent(const std::function<bool(int)>& is_meant) const {
  for (int rank = 0; rank < size(); ++rank) {
    if (!came_[static_cast<std::size_t>(rank)] && is_meant(rank)) return rank;
  }
  return -1;
}

}  // namespace ferry::test
