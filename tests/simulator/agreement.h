// Runs of a group of several nodes that loses ranks and goes on: ranks die, are stopped, leave or
// end the view, nodes are out of reach for a while, and links are cut or held up at any moment. The
// others call survive(), in which their nodes agree on the next view, and make more operations.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "exchange/nodes.h"
#include "ferry/config.h"
#include "simulator/run.h"

namespace ferry::test {

struct AgreementCase {
  struct Blow {
    Fault fault;  // kDeath, kPause, kStop, kRaise, kOutage, kPartition or kCut
    int rank;
    int turns;                // of `rank` before the blow
    bool in_survive = false;  // only turns in survive() count
    int part = 0;             // of a cut: the nodes on one side of it, as bits
    int other = 0;            // and those on the other side
    // Of a blow to one link: the rank at its other end. A link that is cut is lost at both ends;
    // with `one_way` this end learns it first. An outage or a partition holds up the packets in
    // both directions, or with `one_way` only those from this end. A partition of a link ends with
    // the loss of the link.
    int peer = -1;
    bool one_way = false;
    // The blow strikes when the rank sends an agreement message of this kind, and `turns` do not
    // count. That message, and all that the rank sends to other nodes after it, is lost. -1: the
    // blow strikes after `turns`.
    int message = -1;

    bool of_link() const { return peer >= 0; }
  };
  std::uint64_t seed = 0;
  Nodes nodes = {};
  bool one_host = true;  // the nodes are parts of one host
  ExchangeConfig config = {};
  std::vector<Blow> blows = {};
  int num_rounds = 0;    // of each view
  bool remakes = false;  // in some views the members make another exchange
  bool whims = true;     // ranks leave, or end the view, of their own accord
  std::chrono::milliseconds deadline{4000};

  int num_ranks() const { return static_cast<int>(nodes.of_rank.size()); }
  bool has(Fault fault) const;
  bool loses_a_link() const;
  bool remakes_in(std::uint64_t view) const;
  std::string describe() const;
};
// `more`: in half of the cases single links are lost or held up. In a third of all cases exchanges
// are made in later views, and in a third a rank dies or its node is cut off in the middle of an
// agreement.
AgreementCase draw_agreement(std::uint64_t seed, bool more = true);

struct AgreementOutcome {
  std::vector<std::string> wrong;
  int num_views = 1, num_rounds = 0;  // begun, and finished by a rank
  int num_refused = 0;                // ranks of a part that may not go on
  int num_left_behind = 0;            // ranks that others took for lost
  int num_late = 0;                   // calls of survive() that reached their deadline
  int num_remade = 0;                 // exchanges that were made in a later view
  std::uint64_t digest = 0, steps = 0;
};
AgreementOutcome run_agreement(const AgreementCase& drawn, bool trace = false);

}  // namespace ferry::test
