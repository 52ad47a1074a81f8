/* admit() between nodes, of docs/protocol.md ("Ranks that come back"), as a model. check.py gives it
 * to Spin as it is, where it must hold over all interleavings, and once for each guard with that
 * guard removed, where it must fail. The #ifdefs are those guards.
 *
 * Configuration: member 0 of node 0, which coordinates, and member 1 of node 1; two processes that
 * come for the place of the third rank, which is of node 0, or with NEW_NODE of a node without
 * members; ATTEMPTS, the calls of admit(); DEATHS, at most.
 *
 * What a step is. Atomic words are sequentially consistent. The ranks of an admission meet twice:
 * when they have linked, and when they are ready. Each may fail in each meeting, at any time, though
 * others do not: a deadline, or a loss that it sees. A member that fails in the first one stays in
 * its view and may call admit() again, for the same next view; behind the second one it comes to the
 * next view, whatever happens. The nodes agree on that view as in agreement.pml, here in one step,
 * and node 0 has the vote that decides. A process that is late goes on when the others are attempts
 * ahead.
 *
 * What is checked. All that begin view 2 have the same process in the third place. A process that
 * has left is not in a view that begins, unless its node is new: then the others see that it has
 * ended. All that live come to an end (Spin's invalid end states). */

#define COMES 2 /* the processes that come are 2 and 3 */
#define PROCESSES 4
#define IN 1
#define OUT 2
#define YES 1
#define NO 2
#define AT(attempt, p) ((attempt) * PROCESSES + (p))
#define ALL(what) (what[AT(attempt, 0)] && what[AT(attempt, 1)] && what[AT(attempt, invited[attempt])])
#define DECIDE(node, value) if :: seat[node] == 0 -> seat[node] = value :: else fi
#ifdef CLAIMS_DO_NOT_COUNT
#define IS_MINE true
#else
#define IS_MINE (claim == me)
#endif

byte come_to[2], invited[ATTEMPTS + 1];
bool linked[(ATTEMPTS + 1) * PROCESSES], ready[(ATTEMPTS + 1) * PROCESSES];
bool dead[PROCESSES], came[2], over[2], gone[PROCESSES];
byte seat[2]; /* of the third rank, in the memory of each node */
byte claim;   /* in the memory of node 0: the process for which its place was made */
byte outcome; /* whether the third rank is in view 2 */
byte begun;   /* who plays it there */

inline begin_with(process) {
  atomic { assert(begun == 0 || begun == process); begun = process }
}

inline take_seat(who) {
  atomic {
    if
    :: dead[who] -> DECIDE(me, OUT)
    :: !dead[who] -> DECIDE(me, IN)
    fi
  }
}

proctype member(byte me) {
  byte attempt = 1;
  bool comes;
  {
    do
    :: comes || came[1 - me] || dead[1 - me] || attempt > ATTEMPTS -> break
    :: else ->
      come_to[me] = attempt;
      if
      :: come_to[1 - me] >= attempt
      :: dead[1 - me] || came[1 - me] -> break
      fi;
      if
      :: me == 0 -> if :: invited[attempt] = COMES :: invited[attempt] = COMES + 1 fi
      :: me == 1 && invited[attempt] != 0
      :: me == 1 && (dead[0] || came[0]) -> break
      fi;
      linked[AT(attempt, me)] = true;
      if
      :: ALL(linked) ->
        if
        :: me == 0 -> claim = invited[attempt]
        :: else
        fi;
        if
        :: attempt++ /* no memory for the place */
        :: ready[AT(attempt, me)] = true;
          if
          :: ALL(ready) ->
#ifdef NEW_NODE
            take_seat(invited[attempt]);
#else
            if
            :: me == 0 -> take_seat(invited[attempt])
            :: else
            fi;
#endif
            comes = true
          :: comes = true
          fi
        fi
      :: attempt++
      fi
    od;
    came[me] = true;
    (came[1 - me] || dead[1 - me]);
    if
    :: me == 0 ->
      atomic {
        if
        :: seat[0] == 0 && came[1] && !dead[1] -> seat[0] = seat[1] /* what its node knows */
        :: else
        fi;
        outcome = (seat[0] == IN -> YES : NO)
      }
    :: me == 1 && outcome != 0
    :: me == 1 && dead[0] /* too few votes */
    fi;
    if
    :: outcome == YES && attempt <= ATTEMPTS ->
      begin_with(invited[attempt]);
#ifndef NEW_NODE
      assert(!gone[invited[attempt]])
#endif
    :: else
    fi;
    over[me] = true
  } unless { dead[me] }
}

proctype comes(byte me) {
  byte attempt = 1;
  {
    do
    :: attempt > ATTEMPTS -> break
    :: else ->
      if
      :: invited[attempt] == me ->
        linked[AT(attempt, me)] = true;
        if
        :: ALL(linked) ->
          ready[AT(attempt, me)] = true;
          if
          :: ALL(ready)
          :: true ->
#ifdef NEW_NODE
            gone[me] = true;
            break
#else
#ifdef SEAT_OF_ITS_OWN_BY_STORE
            seat[0] = OUT;
#else
            atomic { DECIDE(0, OUT) }
#endif
            if
            :: seat[0] == IN && IS_MINE
            :: !(seat[0] == IN && IS_MINE) -> gone[me] = true; break
            fi
#endif
          fi;
          if
          :: outcome == YES -> begin_with(me)
          :: outcome == NO
          :: (over[0] || dead[0]) && (over[1] || dead[1])
          fi;
          break
        :: attempt++
        fi
      :: invited[attempt] != 0 && invited[attempt] != me -> attempt++
      :: invited[attempt] == 0 && (over[0] || dead[0]) && (over[1] || dead[1]) -> break
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
