// Player: one rank's part in a scenario. It calls the engine as the scenario says, with memory,
// halves, delays and orders of its own (drawn per rank), and compares every output with the oracle
// bit for bit.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "frame.h"
#include "scenario.h"

namespace ferry::test {

struct PlayOptions {
  bool halves = false;  // split operations and keep up to `depth` in flight; else whole calls
  bool delays = false;  // sleep a little now and then
  // Is called with the status that each call returned, and the name of the call.
  std::function<void(const Status&, const std::string&)> check = require_ok;
};

// One rank's memory for a dispatch: pitched tokens, ids of either type.
class DispatchCall {
 public:
  // With `routed` ids, masks and the like are given in a cached round as well.
  DispatchCall(const Scenario& scenario, const Round& round, int rank, Random& random,
               bool routed = false);
  const DispatchArgs& args() const { return args_; }
  DispatchArgs& args() { return args_; }

 private:
  void give_routing(const ExchangeConfig& config, const internal::RankInput& input, Random& random);

  std::vector<std::byte> tokens_;
  std::vector<std::int32_t> narrow_ids_;
  DispatchArgs args_;
};

// One rank's memory for a combine: expert rows in place, in window memory or anywhere; guarded
// outputs.
class CombineCall {
 public:
  // `received`, if it is given, may be used as the memory of the expert rows.
  CombineCall(Exchange& exchange, const Scenario& scenario, const Round& round,
              const CombineCase& combine, int rank, const Handle& handle, Received* received,
              Random& random);
  const CombineArgs& args() const { return args_; }
  CombineArgs& args() { return args_; }
  // Not ok if the group broke before the call. This error is told once, so the combine would not
  // tell it again.
  const Status& broke() const { return broke_; }
  // To be called after the send half: overwrites the caller's memory that was copied into the
  // window.
  void overwrite_what_was_copied();
  void check(const std::string& what) const;

 private:
  void place_rows(Exchange& exchange, std::int64_t num_rows, Received* received, Random& random);
  void place_foreign_rows(std::int64_t num_rows, Random& random);
  void place_out(Random& random);
  void give_weights_home(int top_k);
  void give_epilogue(Random& random);

  const CombineCase& combine_;
  const int rank_;
  const std::int64_t num_tokens_;
  const bool takes_part_;  // else nothing may be written
  std::optional<DispatchCall> dispatched_;
  std::vector<std::byte> foreign_;
  OutputRows outputs_;
  std::vector<float> row_weights_;
  std::vector<float> topk_weights_home_;
  std::vector<std::byte> out_;
  std::int64_t out_pitch_ = 0;
  std::vector<std::byte> y_;
  std::vector<float> rstd_;
  CombineArgs args_;
  Status broke_;
};

// Compares a received dispatch with the oracle.
void check_received(const Scenario& scenario, const Round& round, int rank,
                    const Received& received, const std::string& what);

// Plays the whole scenario on a new exchange of the group.
void play(Group& group, const Scenario& scenario, const PlayOptions& options);
// The same on an exchange that is there already.
void play(Exchange& exchange, int rank, const Scenario& scenario, const PlayOptions& options);

// Plays one scenario on a group of its own.
void run_scenario(Mode mode, const Scenario& scenario, const PlayOptions& options);

}  // namespace ferry::test
