// Each call of the collectives, with numbers that show where they come from.
#include "view_collectives.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ferry/collectives.h"
#include "seat.h"

namespace ferry::test {
namespace {

using Floats = std::vector<float>;

// The collectives of the ranks of the view, with `count` elements for each rank of the group.
class CalledCollectives {
 public:
  CalledCollectives(const Group& group, int count)
      : calls_(group, {.window_bytes = 4096}),
        members_(group.view().members),
        rank_(group.rank()),
        count_(count),
        counts_(group.size(), count) {}

  void play() {
    gather_and_scatter();
    reduce();
    move_pairs();
    send_to_next();
    require_ok(calls_.barrier(), "barrier");
  }

  // A rank that the view lacks.
  void require_refused(int lost) {
    Floats one(1);
    const auto refused = [&](const Status& status) {
      require_status(status, Code::kInvalidArgument, {std::to_string(lost), "view", "lacks"},
                     "a lost rank");
    };
    refused(calls_.broadcast(one.data(), 1, DataType::kFp32, lost));
    refused(calls_.send(one.data(), 1, DataType::kFp32, lost, 0));
    refused(calls_.recv(one.data(), 1, DataType::kFp32, lost, 0));
  }

 private:
  static constexpr DataType kType = DataType::kFp32;

  // Small integers, whose sums are exact.
  float value(int from, int to, int i) const { return static_cast<float>(16 * from + to + i % 7); }
  Floats values(int from, int to) const {
    Floats made(count_);
    for (int i = 0; i < count_; ++i) made[i] = value(from, to, i);
    return made;
  }
  Floats sums(int to) const {
    Floats made(count_);
    for (const int from : members_)
      for (int i = 0; i < count_; ++i) made[i] += value(from, to, i);
    return made;
  }
  // [ranks, count] The blocks of a rank that the view lacks are -1.
  template <typename Block>
  Floats blocks(const Block& block) const {
    Floats made(counts_.size() * count_, -1);
    for (const int rank : members_) std::ranges::copy(block(rank), made.begin() + rank * count_);
    return made;
  }
  static void require_equal(const Floats& seen, const Floats& expected, const std::string& what) {
    test::require_equal(std::span(seen), std::span(expected), what);
  }

  void gather_and_scatter() {
    const Floats mine = values(rank_, 0), nothing = blocks([](int) { return Floats(); });
    const Floats all = blocks([&](int from) { return values(from, 0); });
    const int root = members_.back();
    Floats out = nothing;
    require_ok(calls_.all_gather_v(mine.data(), count_, out.data(), counts_, kType), "all_gather");
    require_equal(out, all, "all_gather");
    out = nothing;
    require_ok(calls_.gather_v(mine.data(), out.data(), counts_, kType, root), "gather");
    require_equal(out, rank_ == root ? all : nothing, "gather");
    Floats part(count_);
    require_ok(calls_.scatter_v(all.data(), part.data(), counts_, kType, root), "scatter");
    require_equal(part, mine, "scatter");
    part = rank_ == root ? mine : Floats(count_);
    require_ok(calls_.broadcast(part.data(), count_, kType, root), "broadcast");
    require_equal(part, values(root, 0), "broadcast");
  }

  void reduce() {
    const Floats mine = values(rank_, 0), zero(count_);
    const int root = members_.front();
    Floats out = zero;
    require_ok(calls_.all_reduce(mine.data(), out.data(), count_, kType, ReduceOp::kSum), "reduce");
    require_equal(out, sums(0), "all_reduce");
    out = zero;
    require_ok(calls_.reduce(mine.data(), out.data(), count_, kType, ReduceOp::kSum, root), "sum");
    require_equal(out, rank_ == root ? sums(0) : zero, "reduce");
    const Floats in = blocks([&](int to) { return values(rank_, to); });
    require_ok(calls_.reduce_scatter_v(in.data(), counts_, out.data(), kType, ReduceOp::kSum),
               "rs");
    require_equal(out, sums(rank_), "reduce_scatter");
  }

  void move_pairs() {
    const Floats in = blocks([&](int to) { return values(rank_, to); });
    Floats out(in.size(), -1);
    require_ok(calls_.all_to_all_v(in.data(), counts_, out.data(), counts_, kType), "all_to_all");
    require_equal(out, blocks([&](int from) { return values(from, rank_); }), "all_to_all");
  }

  // Receives from any rank.
  void send_to_next() {
    const std::size_t num = members_.size();
    const std::size_t place = std::ranges::find(members_, rank_) - members_.begin();
    const int next = members_[(place + 1) % num], previous = members_[(place + num - 1) % num];
    const Floats mine = values(rank_, next);
    Floats out(count_);
    int source = -1;
    const Message sent = calls_.begin_send(mine.data(), count_, kType, next, 5);
    require_ok(calls_.recv(out.data(), count_, kType, -1, 5, &source), "recv");
    while (!sent.ended()) require_ok(calls_.progress(), "progress");
    require(source == previous, "the source is " + std::to_string(source));
    require_equal(out, values(previous, rank_), "recv");
  }

  Collectives calls_;
  const std::vector<int> members_;
  const int rank_, count_;
  const std::vector<std::int64_t> counts_;
};

}  // namespace

void require_collectives(const Group& group, int lost) {
  for (const int count : {5, 6000}) {  // in one round; in several, by slices
    CalledCollectives calls(group, count);
    calls.play();
    calls.require_refused(lost);
    calls.play();
  }
}

}  // namespace ferry::test
