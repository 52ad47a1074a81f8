// Seat: one rank of an exchange, for tests that give the steps of each rank one by one. Every step
// is checked against the oracle.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "player.h"

namespace ferry::test {

class Seat {
 public:
  struct PendingCombine {
    int round = 0;
    Operation operation;
    std::unique_ptr<CombineCall> call;
  };

  Seat(const Group& group, const Scenario& scenario);
  Seat(const Group& group, const Scenario& scenario, Exchange exchange);

  Exchange& exchange() { return exchange_; }
  int rank() const { return rank_; }

  // The arguments of one call of a round, for a test that changes them and makes the call itself.
  DispatchCall dispatch_call(int round);
  CombineCall combine_call(int round, const Handle& handle, Received* in_place = nullptr);

  // The whole round; the expert rows are written over the received rows.
  void play(int round);
  Received dispatch(int round, const Handle& cached = {});
  Operation dispatch_send(int round, const Handle& cached = {});
  Received dispatch_recv(int round, Operation operation);
  void check(int round, const Received& received, const std::string& when = "") const;

  // With `in_place` the expert rows are written over the received rows.
  void combine(int round, const Handle& handle, Received* in_place = nullptr);
  PendingCombine combine_send(int round, const Handle& handle, Received* in_place = nullptr);
  void combine_recv(const PendingCombine& pending);

 private:
  DispatchCall dispatch_call(int round, const Handle& cached);

  const Scenario& scenario_;
  const int rank_;
  Random random_;
  Exchange exchange_;
};

// A test of ranks that are threads or processes, each with a seat.
class SeatTest : public testing::TestWithParam<Mode> {
 protected:
  static void run(const Scenario& scenario, const std::function<void(Group, Seat&)>& body,
                  const GroupOptions& options = {.deadline = std::chrono::seconds(30)});
};

// Tells a rank to be slow.
void nap(int milliseconds);

}  // namespace ferry::test
