/* admit() of docs/protocol.md ("Ranks that come back") as a model. check.py gives it to Spin as it
 * is, where it must hold over all interleavings, and once for each guard with that guard removed,
 * where it must fail. The #ifdefs are those guards.
 *
 * Configuration: two members of view 1, of which the first one coordinates, and two processes that
 * come for the place of the third rank; ATTEMPTS, the calls of admit(); DEATHS, at most.
 *
 * What a step is. Atomic words are sequentially consistent. Any process may give up in any attempt,
 * at any time: a deadline, or a loss that it sees. A process that is early waits for its invitation,
 * and one that is late goes on when the others are attempts ahead.
 *
 * What is checked. All that begin view 2 have the same members, played by the same processes. Once
 * the process that took the place has written its flag there, nobody else writes it. All that live
 * come to an end (Spin's invalid end states). */

#define COORDINATOR 0
#define COMES 2 /* the processes that come are 2 and 3 */
#define PROCESSES 4
#define NOBODY 1 /* in the place of the third rank, in a view that survive() began */
#define YES 1
#define NO 2
#define READY(p) ready[attempt * PROCESSES + (p)]
#define OVER(p) (over[p] || dead[p])

byte decided, decision; /* one word: the last attempt that is decided, and how */
byte invited[ATTEMPTS + 1], come_to[2];
bool ready[(ATTEMPTS + 1) * PROCESSES];
bool dead[PROCESSES], over[2];
byte flag;  /* of the third rank: 0, or the process that has written it */
byte begun; /* who plays the third rank in view 2; 0: it has not begun */

inline take_part(me) {
  READY(me) = true;
  if
  :: READY(0) && READY(1) && READY(invited[attempt]) -> outcome = YES
  :: outcome = NO
  fi;
#ifndef NO_DECISION
  atomic {
    if
    :: decided < attempt -> decided = attempt; decision = outcome
    :: decided == attempt -> outcome = decision
    :: decided > attempt ->
#ifdef LATER_DECISIONS_COUNT
      outcome = decision
#else
      outcome = NO
#endif
    fi
  }
#endif
}

inline begin_with(process) {
  atomic { assert(begun == 0 || begun == process); begun = process }
}

proctype member(byte me) {
  byte attempt = 1, outcome = NO;
  {
    do
    :: outcome == YES || attempt > ATTEMPTS -> break
    :: else ->
      come_to[me] = attempt;
      if
      :: come_to[1 - me] >= attempt
      :: dead[1 - me] -> break
      fi;
      if
      :: me == COORDINATOR ->
#ifndef NO_CLEARING_BY_THE_COORDINATOR
        flag = 0;
#endif
        if :: invited[attempt] = COMES :: invited[attempt] = COMES + 1 fi
      :: me != COORDINATOR && invited[attempt] != 0
      :: me != COORDINATOR && dead[COORDINATOR] -> break
      fi;
      take_part(me);
      if
      :: outcome == YES -> begin_with(invited[attempt])
      :: outcome == NO -> attempt++
      fi
    od;
    if
    :: outcome == NO && dead[1 - me] -> begin_with(NOBODY)
    :: else
    fi;
    over[me] = true
  } unless { dead[me] }
}

proctype comes(byte me) {
  byte attempt = 1, outcome = NO;
  {
    do
    :: attempt > ATTEMPTS -> break
    :: else ->
      if
      :: invited[attempt] == me ->
#ifdef NO_CLEARING_BY_THE_COORDINATOR
        flag = 0;
#endif
        take_part(me);
        if
        :: outcome == YES ->
          begin_with(me);
          atomic { assert(flag == 0); flag = me }
          assert(flag == me);
          break
        :: outcome == NO -> attempt++
        fi
      :: invited[attempt] != 0 && invited[attempt] != me -> attempt++
      :: invited[attempt] == 0 && OVER(0) && OVER(1) -> break
      fi
    od
  } unless { dead[me] }
}

#define KILL(p) :: dead[p] = true

proctype deaths() {
  byte count;
  do
  :: count < DEATHS -> atomic { if KILL(0) KILL(1) KILL(2) KILL(3) fi; count++ }
  :: true -> break
  od
}

init {
  atomic {
    run member(0);
    run member(1);
    run comes(COMES);
    run comes(COMES + 1);
    run deaths()
  }
}
