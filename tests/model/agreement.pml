/* The agreement of nodes of docs/protocol.md ("Views") as a model. check.py gives it to Spin as it
 * is, where it must hold over all interleavings, and once for each guard with that guard removed,
 * where it must fail. The #ifdefs are those guards.
 *
 * Configuration: nodes 0 to 2 with V0, V1 and V2 ranks in the last view; BALLOTS, of which nodes 0
 * and 1 have every other one; DEATHS of speakers, at most.
 *
 * What a step is. The speaker of a node takes one message and answers it in one step, but it may
 * die between the writes of an acceptance. What was sent stays: a node reads it at any later
 * moment, again, or never. So messages are lost, delayed and repeated, and the group may be cut
 * into any two parts at any moment: their nodes then read nothing of each other. A proposer goes on
 * with any of the promises that it got: the other nodes are those that it cannot reach. A speaker
 * that dies is followed by another rank of its node, which has only what lies in their memory. A
 * node whose last rank dies is one that takes no more steps.
 *
 * The value that is agreed on is the set of nodes that promised, as a mask. What is checked: no two
 * different sets are decided. So two parts never both go on, and never one with too few votes: the
 * other one might have decided a set of its own. */

#define NODES 3
#define PROPOSERS 2
#define AT(ballot, node) ((ballot) * NODES + (node))
#define VOTES(mask) (((mask) & 1) * V0 + ((mask) >> 1 & 1) * V1 + ((mask) >> 2 & 1) * V2)
#define ALL_VOTES (V0 + V1 + V2)
#if defined(HALF_IS_ENOUGH)
#define ENOUGH(mask) (2 * VOTES(mask) >= ALL_VOTES)
#elif defined(ANY_PART_IS_ENOUGH)
#define ENOUGH(mask) ((mask) != 0)
#else
#define ENOUGH(mask) (2 * VOTES(mask) > ALL_VOTES || (2 * VOTES(mask) == ALL_VOTES && ((mask) & 1)))
#endif
#ifdef WRITTEN_OVER
#define FREE_HALF(n) half[n]
#else
#define FREE_HALF(n) (1 - half[n])
#endif
#ifdef OLDER_BALLOTS_COUNT
#define MAY_TAKE(b) (taken == 0)
#else
#define MAY_TAKE(b) (taken == 0 && b >= promised[me])
#endif
#ifdef FIRST_ACCEPTED_COUNTS
#define COUNTS(n) (last == 0 || had_accepted[AT(ballot[me], n)] < last)
#else
#define COUNTS(n) (had_accepted[AT(ballot[me], n)] > last)
#endif

/* In the memory of each node. `accepted` is a ballot; its set is in the half that `half` names. */
byte promised[NODES], accepted[NODES];
bit half[NODES];
byte set[2 * NODES];
/* Of the speakers: the ballot of each, and whether its proposal is sent. */
byte ballot[NODES];
bool proposes[NODES];
/* What was sent, by ballot; promises also by node, for the ballot of a speaker that waits. */
bool asked[BALLOTS + 1], promises[(BALLOTS + 1) * NODES];
byte had_accepted[(BALLOTS + 1) * NODES], had_set[(BALLOTS + 1) * NODES];
byte proposal[BALLOTS + 1];
byte acceptors[BALLOTS + 1]; /* a mask */

byte outcome, deaths;

#define HALF_WRITTEN(mask) ((mask) & 3)
#define OWNER(b) ((b - 1) % PROPOSERS)
#define IS_AWAITED(b) (ballot[OWNER(b)] == b && !proposes[OWNER(b)])

inline promise_to(b) {
  promised[me] = b;
  if
  :: IS_AWAITED(b) ->
    promises[AT(b, me)] = true;
    had_accepted[AT(b, me)] = accepted[me];
    had_set[AT(b, me)] = (accepted[me] > 0 -> set[2 * me + half[me]] : 0)
  :: else
  fi
}

inline count_promise(n) {
  if
  :: promises[AT(ballot[me], n)] ->
    mask = mask | 1 << (n);
    if
    :: had_accepted[AT(ballot[me], n)] > 0 && COUNTS(n) ->
      last = had_accepted[AT(ballot[me], n)];
      value = had_set[AT(ballot[me], n)]
    :: else
    fi
  :: n != me /* node n cannot be reached */
  fi
}

inline forget_promise(n) {
  promises[AT(ballot[me], n)] = false;
  had_accepted[AT(ballot[me], n)] = 0;
  had_set[AT(ballot[me], n)] = 0
}

inline forget_promises() {
  forget_promise(0);
  forget_promise(1);
  forget_promise(2)
}

#define TAKE_PREPARE(b) :: atomic { asked[b] && IS_AWAITED(b) && MAY_TAKE(b) && !promises[AT(b, me)] -> promise_to(b) }
#define TAKE_PROPOSAL(b) :: atomic { \
    proposal[b] && MAY_TAKE(b) && !(acceptors[b] >> me & 1) -> \
    taken = b; promised[me] = b; set[2 * me + FREE_HALF(me)] = HALF_WRITTEN(proposal[b]) \
  }

proctype node(byte me; byte ranks) {
  byte taken; /* the ballot that the speaker is accepting */
  byte mask, last, value, next;
end:
  do
  TAKE_PREPARE(1)
  TAKE_PREPARE(2)
  TAKE_PREPARE(3)
  TAKE_PROPOSAL(1)
  TAKE_PROPOSAL(2)
  TAKE_PROPOSAL(3)
#if BALLOTS > 3
  TAKE_PREPARE(4)
  TAKE_PROPOSAL(4)
#endif
  :: atomic { taken > 0 ->
      half[me] = FREE_HALF(me); set[2 * me + half[me]] = proposal[taken];
      accepted[me] = taken; set[2 * me + 1 - half[me]] = 0;
      acceptors[taken] = acceptors[taken] | 1 << me;
      taken = 0
    }
  :: atomic { /* begins a ballot */
      me < PROPOSERS && taken == 0 && promised[me] < BALLOTS ->
      next = me + 1;
#ifdef BALLOTS_ARE_FORGOTTEN
      do :: next <= ballot[me] -> next = next + PROPOSERS :: else -> break od;
#else
      do :: next <= promised[me] -> next = next + PROPOSERS :: else -> break od;
#endif
      if
      :: next <= BALLOTS && next >= promised[me] ->
        if :: ballot[me] > 0 && next != ballot[me] -> forget_promises() :: else fi;
        ballot[me] = next; asked[next] = true; proposes[me] = false;
        promise_to(next)
      :: else
      fi;
      next = 0
    }
  :: atomic { /* proposes with some of the promises */
      ballot[me] > 0 && !proposes[me] && taken == 0 && promised[me] == ballot[me] ->
      count_promise(0);
      count_promise(1);
      count_promise(2);
      if
      :: ENOUGH(mask) ->
#ifdef WHAT_WAS_ACCEPTED_DOES_NOT_COUNT
        proposal[ballot[me]] = mask;
#else
        proposal[ballot[me]] = (last > 0 -> value : mask);
#endif
        proposes[me] = true;
        forget_promises()
      :: else /* its part has too few votes */
      fi;
      mask = 0; last = 0; value = 0
    }
  :: atomic { /* decides */
#ifdef ONE_ACCEPTANCE_DECIDES
      proposes[me] && acceptors[ballot[me]] != 0 ->
#else
      proposes[me] && ENOUGH(acceptors[ballot[me]]) ->
#endif
      assert(outcome == 0 || outcome == proposal[ballot[me]]);
      outcome = proposal[ballot[me]];
      ballot[me] = 0; proposes[me] = false
    }
  :: atomic { /* dies, and another rank follows */
      ranks > 1 && deaths < DEATHS ->
      deaths++; ranks--;
      if :: ballot[me] > 0 -> forget_promises() :: else fi;
      ballot[me] = 0; proposes[me] = false; taken = 0;
#ifdef PROMISES_END_WITH_THEIR_SPEAKER
      promised[me] = 0;
#endif
#ifdef ACCEPTANCES_END_WITH_THEIR_SPEAKER
      accepted[me] = 0
#endif
    }
  od
}

init {
  atomic {
    run node(0, V0);
    run node(1, V1);
    run node(2, V2)
  }
}
