/* survive() of docs/protocol.md ("Views") as a model. check.py gives it to Spin as it is, where it
 * must hold over all interleavings, and once for each guard with that guard removed, where it must
 * fail. The #ifdefs are those guards.
 *
 * Configuration: R ranks (3); LAST, the number of the last view; DEATHS, at most.
 *
 * What a step is. Atomic words are sequentially consistent. In each view a rank makes one operation
 * or none, and then calls survive(). An operation ends when all members have come to it, or when one
 * of them is dead or has ended the view. A rank that is stopped is one that takes no step for a
 * while. A wait for several ranks is one step, and so is what is read after it: seats are decided
 * once. Waiting and reading are two steps, so a read happens at every later moment.
 *
 * What is checked. All ranks that begin a view have the same members and go on from the same number.
 * No member has used a larger number. When a view begins, no rank that lives reads or writes for an
 * operation of the view before. Only a death, or an abort word of this view, ends a call. A rank
 * that lives is in every view. All ranks that live come to the last view (Spin's invalid end
 * states). */

#define me (_pid - 1) /* the process of init comes first */
#define ALL ((1 << R) - 1)
#define IN(v) (2 * (v) + 1)
#define OUTSIDE(v) (2 * (v))
#ifdef ONE_PLACE
#define PREPARED(r, v) prepared[r]
#else
#define PREPARED(r, v) prepared[(r) * 2 + (v) % 2]
#endif
#ifdef WORDS_WITHOUT_VIEW
#define ENDS(r, v) (abort[r] != 0)
#else
#define ENDS(r, v) (abort[r] == (v))
#endif

/* f(r) for each rank, as a mask of ranks. */
#define MASK(f) (f(0) | f(1) << 1 | f(2) << 2)
#define BEHIND(r) (progress[r] < number)
#define LOST(r) (dead[r])
#define ENDED(r) ENDS(r, view)
#define ENDED_NOW(r) (abort[r] == view)
#define UNDECIDED(r) (seat[r] < OUTSIDE(view + 1))
#ifdef LIVING_ARE_LEFT_BEHIND
#define LOST_OR_LATE(r) true
#else
#define LOST_OR_LATE(r) (dead[r])
#endif
#define AT_WORK(r) (busy[r] == view)

byte seat[R], prepared[2 * R], progress[R];
byte abort[R]; /* the last view that the rank has ended */
byte busy[R];  /* the view of the operation that the rank is in; 0: none */
bool dead[R];
/* Of each view: what the first rank that began it found. */
byte members[LAST + 1], begun_at[LAST + 1];

#define CHOOSE(r) :: (ranks >> (r) & 1) && UNDECIDED(r) -> late = r

proctype rank() {
  byte view = 1, ranks = ALL, number = 0; /* of the last operation */
  byte late = R, next_ranks, most, r;
  {
    do
    :: view < LAST ->
      if
      :: atomic { number++; progress[me] = number; busy[me] = view }
        if
        :: atomic { !(MASK(BEHIND) & ranks) -> busy[me] = 0 }
        :: atomic {
             (MASK(LOST) | MASK(ENDED)) & ranks ->
             assert((MASK(LOST) | MASK(ENDED_NOW)) & ranks);
             busy[me] = 0
           }
        fi
      :: true
      fi;
      abort[me] = view;
#ifndef PREPARES_LATE
      PREPARED(me, view + 1) = number;
#endif
      atomic { assert(UNDECIDED(me)); seat[me] = IN(view + 1) }
#ifdef PREPARES_LATE
      PREPARED(me, view + 1) = number;
#endif
#ifndef NO_SEATS_WAIT
      do
      :: !(MASK(UNDECIDED) & ranks) -> break
      :: atomic { if CHOOSE(0) CHOOSE(1) CHOOSE(2) fi }
        atomic {
          if
          :: !UNDECIDED(late)
          :: LOST_OR_LATE(late) ->
#ifndef SEATS_BY_STORE
            if :: UNDECIDED(late) -> seat[late] = OUTSIDE(view + 1) :: else fi
#else
            seat[late] = OUTSIDE(view + 1)
#endif
          fi;
          late = R
        }
      od;
#endif
      atomic {
        r = 0; most = 0; next_ranks = 0;
        do
        :: r == R -> break
        :: r < R && (ranks >> r & 1) && seat[r] > OUTSIDE(view + 1) ->
          next_ranks = next_ranks | 1 << r;
          if :: PREPARED(r, view + 1) > most -> most = PREPARED(r, view + 1) :: else fi;
          r++
        :: else -> r++
        od;
        assert(!MASK(AT_WORK));
        if
        :: members[view + 1] == 0 -> members[view + 1] = next_ranks; begun_at[view + 1] = most
        :: else
        fi;
        assert(members[view + 1] == next_ranks && begun_at[view + 1] == most);
        assert(most >= number && (next_ranks >> me & 1));
        view++; ranks = next_ranks; number = most; r = 0; most = 0; next_ranks = 0
      }
    :: view == LAST -> break
    od
  } unless { dead[me] }
}

#define KILL(r) :: dead[r] = true; busy[r] = 0

proctype deaths() {
  byte count;
  do
  :: count < DEATHS -> atomic { if KILL(0) KILL(1) KILL(2) fi; count++ }
  :: true -> break
  od
}

init {
  byte i = 0;
  atomic {
    members[1] = ALL;
    do
    :: i < R -> run rank(); i++
    :: i == R -> break
    od;
    run deaths()
  }
}
