/* The protocol of docs/protocol.md as a model. check.py gives it to Spin in several configurations,
 * each of which must hold over all interleavings, and once per guard with that guard removed, which
 * must fail. The #ifdefs are those guards; check.py says what each one is.
 *
 * Configuration: R ranks (2, 3); D depth; EPOCHS pairs of dispatch and combine (1 to 3); NB buffers
 * in the pool of a rank; HALVES: receive halves come late and in any order, operations in several
 * orders (without it each call runs to its end); SPARSE: a rank may leave itself or others without
 * a row; SUMS: ranks sum the counts together; COPIES: outputs may lie outside the window; POISONS:
 * calls that are rejected, at most, in all; FLIPS: calls of the wrong kind or with other arguments,
 * likewise; EMPTIES: calls that agree with any arguments; OVERFLOW: buffers start too small;
 * REFUSALS of memory, at most; DEATH: one rank is killed, stopped (and perhaps woken) or leaves,
 * anywhere.
 *
 * What a step is. Atomic words are sequentially consistent. A record, a count row and rows are
 * written in two steps; a flag goes up with the second, so a rank that reads too early finds the
 * result of the first.
 * Waiting and reading what was waited for are two steps, so a read happens at every later moment.
 * A wait for several ranks is one step: flags only grow, so it does not matter who is looked at
 * first. Steps that touch words of this rank alone are merged.
 *
 * What is checked. Each record, count row, row list, received row and pulled output that is read is
 * the one of the expected operation and source; rows are written to committed memory only; flags
 * only grow; all ranks get the same outcome of an operation; every rank comes to its end (Spin's
 * invalid end states); when a rank died the others end too, and blame only a rank that owes a flag. */

#ifndef RING
#define RING (2 * D)
#endif
#ifndef LISTS
#define LISTS D
#endif
#ifdef OVERFLOW
#define COMMITTED (R - 1)
#else
#define COMMITTED R
#endif
#define OPS (2 * EPOCHS)
#define NONE 255
#define TORN 255
#define DISPATCH 0
#define COMBINE 1
#define me _pid

/* f for each rank, as a mask of ranks. */
#if R == 2
#define ALL_RANKS 3
#define MASK(f, v) (f(0, v) | f(1, v) << 1)
#else
#define ALL_RANKS 7
#define MASK(f, v) (f(0, v) | f(1, v) << 1 | f(2, v) << 2)
#endif
#define BELOW(r, v) (progress[r] < (v))
#define UNREAD(r, v) (read_through[r] < (v))
#define POISONED(r, n) (progress[r] >= 4 * (n) && record_begin[RECORD(r, n)] == (n) && \
                        record_status[RECORD(r, n)])

/* The count matrix of a dispatch: bit s * R + d says that rank s sends its one row to rank d. The
 * rows that d receives lie in the order of their sources. */
#define SENDS(m, s, d) ((m) >> ((s) * R + (d)) & 1)
#define SLOT(m, s, d) (((s) > 0 && SENDS(m, 0, d)) + ((s) > 1 && SENDS(m, 1, d)))
#define ROWS(m, d) (SLOT(m, R - 1, d) + SENDS(m, R - 1, d))

/* What a slot holds: the row of dispatch n from s, or the expert's output for it. */
#define ROW(n, s) (4 * (n) + (s))
#define OUTPUT(n, s) (64 + 4 * (n) + (s))
#define MINE 200 /* what a caller writes into a buffer that it was given again */
#define AT(r, b, slot) (((r) * NB + (b)) * R + (slot))
#define RECORD(r, n) ((r) * RING + (n) % RING)
#define LIST(r, n) ((r) * LISTS + (n) % LISTS)

#define YES 1
#define NO 2

#define DELIVERED 1
#define REJECTED 2
#define MISMATCH 3
#define CAPACITY 4

/* Why a buffer of the pool is pinned. */
#define UNDER_WAY 1 /* an unfinished dispatch may fill it */
#define VIEW 2      /* the caller holds its rows */

byte progress[R]; /* 4 * number + stage */
byte read_through[R];
/* Records, named as in src/exchange/setup/record.h, and count rows carry their number in each half. */
byte record_begin[R * RING];
byte record_end[R * RING];
bit record_kind[R * RING];
byte record_weights[R * RING]; /* stands for all that ranks must agree on; 0 agrees with any */
bit record_status[R * RING]; /* 1: the rank refused its call */
bit record_growth[R * RING]; /* 1: memory was refused; read after stage 1 only */
byte record_buffer[R * RING];
byte record_free_after[R * RING];
byte count_begin[R * RING];
byte count_end[R * RING];
byte count_row[R * RING];
byte lists[R * LISTS]; /* of the rows that a rank sends: the dispatch whose rows it has */
#ifdef SUMS
byte sums[R * R]; /* for each rank the slice of each rank: the operation whose counts it sums */
#endif
byte slots[R * NB * R];
byte record_section_rows[R * RING];
byte committed[R * NB] = COMMITTED; /* slots with memory behind them */

/* Not shared memory, but the script of the run and what the checks compare. */
bit started;
byte script[OPS]; /* 2 * batch + kind, the same on all ranks */
byte outcome[OPS + 1];
byte poisons_left = POISONS;
byte flips_left = FLIPS;
byte empties_left = EMPTIES;
byte refusals_left = REFUSALS;
#ifdef DEATH
byte killed;  /* masks of ranks: a pidfd tells */
byte stopped; /* only a deadline tells */
byte gone;    /* destroyed its group: its abort word tells */
byte victim;
byte ended;
byte abort_word[R]; /* 0, or 1 + culprit */
#define HAS_ABORTED(r, v) (abort_word[r] > v)
#define RUNS provided ((~(killed | stopped | gone) >> _pid) & 1)
#ifdef NO_LIVENESS_POLL
#define FAILING stopped
#elif defined(NO_DEADLINE)
#define FAILING killed
#else
#define FAILING (killed | stopped)
#endif
#else
#define RUNS
#endif

/* Ends when `owing`, an expression that gives a mask of ranks, is 0. Looks at flags, then at abort
 * words and liveness, then at the flags once more: a rank that raised its flag and then died owes
 * nothing. */
inline wait_while(owing) {
#ifndef DEATH
  (owing) == 0
#else
  seen = owing;
  do
  :: atomic { (owing) == 0 -> break }
  :: atomic { (seen & FAILING) -> suspects = seen & FAILING }
     atomic {
       if
#ifdef NO_RECHECK
       :: true ->
          assert((owing) & suspects);
#else
       :: (owing) & suspects ->
          suspects = (owing) & suspects;
#endif
          goto broken
       :: else -> seen = owing; suspects = 0
       fi
     }
#ifndef NO_ABORT_POLL
  :: atomic { MASK(HAS_ABORTED, 0) ->
     if
     :: (owing) == 0 -> break
     :: else -> goto broken
     fi }
#endif
  od;
  seen = 0
#endif
}

#define OWE_PROGRESS(v) MASK(BELOW, v)
#define OWE_READING(v) MASK(UNREAD, v)

inline raise_progress(value) {
  assert(progress[me] < value);
  progress[me] = value
}

/* Operation n ends on this rank with `result`. read_through becomes the number before this rank's
 * oldest unfinished operation. */
inline end_operation(n) {
  assert(outcome[n] == 0 || outcome[n] == result);
  outcome[n] = result;
  result = 0;
#ifndef NOT_DELIVERED_AFTER_ERROR
  if
  :: progress[me] < 4 * n + 3 -> progress[me] = 4 * n + 3
  :: else
  fi;
#endif
  kind_of[n] = 0;
  batch_of[n] = 0;
  unfinished = unfinished & ~(1 << n);
  i = 1;
  do
  :: i <= number && !(unfinished >> i & 1) -> i++
  :: else -> break
  od;
  assert(read_through[me] <= i - 1);
  read_through[me] = i - 1;
  i = 0
}

/* The records of operation n of all ranks. */
inline read_records(n) {
  result = DELIVERED;
  i = 0;
  do
  :: i < R ->
     assert(record_begin[RECORD(i, n)] == n && record_end[RECORD(i, n)] == n);
     if
#ifndef IGNORE_POISON
     :: record_status[RECORD(i, n)] -> result = REJECTED
#endif
#ifndef IGNORE_MISMATCH
     :: !record_status[RECORD(i, n)] && record_kind[RECORD(i, n)] != kind_of[n] ->
        result = (result == REJECTED -> result : MISMATCH)
#endif
     :: else
     fi;
#ifdef COMPARES_WITH_OWN_RECORD
     terms = record_weights[RECORD(me, n)];
#endif
     terms = terms | record_weights[RECORD(i, n)];
     if
     :: terms == (YES | NO) && result == DELIVERED -> result = MISMATCH
     :: else
     fi;
     i++
  :: else -> break
  od;
  terms = 0;
  i = 0
}

#ifdef GUARD_OF_OWN_DESTINATIONS
#define GUARDS(r) SENDS(matrix[batch], me, r)
#else
#define GUARDS(r) 1
#endif

/* The records and count rows of dispatch n: who overflows, and what the reuse guard waits for. */
inline read_matrix(n) {
  i = 0;
  do
  :: i < R ->
     assert(count_begin[RECORD(i, n)] == n && count_end[RECORD(i, n)] == n);
     matrix[batch] = matrix[batch] | count_row[RECORD(i, n)] << (i * R);
     posted[i] = record_buffer[RECORD(i, n)];
     i++
  :: else -> break
  od;
  i = 0;
  do
  :: i < R ->
     if
     :: ROWS(matrix[batch], i) > record_section_rows[RECORD(i, n)] -> growing = growing | 1 << i
     :: else
     fi;
     if
     :: record_free_after[RECORD(i, n)] > guard && GUARDS(i) ->
        guard = record_free_after[RECORD(i, n)]
     :: else
     fi;
     i++
  :: else -> break
  od;
  i = 0
}

/* Each row that this rank received in batch `b` must be `content`, an expression of its source i. */
inline check_rows(b, content) {
  i = 0;
  do
  :: i < R ->
     assert(!SENDS(matrix[b], i, me) ||
            slots[AT(me, buffer_of[b], SLOT(matrix[b], i, me))] == content);
     i++
  :: else -> break
  od;
  i = 0
}

/* The expert turns the rows of b into outputs, in `target`. */
inline write_outputs(b, target) {
  i = 0;
  do
  :: i < R ->
     if
     :: SENDS(matrix[b], i, me) ->
        slots[AT(me, target, SLOT(matrix[b], i, me))] = OUTPUT(number_of[b], i)
     :: else
     fi;
     i++
  :: else -> break
  od;
  i = 0
}

/* Combine n reads the outputs of the rows of batch b. */
inline pull_outputs(n, b) {
  i = 0;
  do
  :: i < R && result == DELIVERED ->
     if
     :: SENDS(matrix[b], me, i) ->
        assert(slots[AT(i, record_buffer[RECORD(i, n)], SLOT(matrix[b], me, i))] ==
               OUTPUT(number_of[b], me))
     :: else
     fi;
     i++
  :: else -> break
  od;
  i = 0
}

/* While a rank waits, it reads outputs that ranks which make the same call have already published. */
#ifdef EARLY_WITHOUT_RECORDS
#define MAKES_MY_CALL(r, n) 1
#else
#define MAKES_MY_CALL(r, n) (record_begin[RECORD(r, n)] == (n) && !record_status[RECORD(r, n)] && \
                             record_kind[RECORD(r, n)] == COMBINE && \
                             (record_weights[RECORD(r, n)] | record_weights[RECORD(me, n)]) != \
                             (YES | NO))
#endif
#ifdef EARLY_WITHOUT_FLAGS
#define PUBLISHED(r, n) (record_begin[RECORD(r, n)] == (n))
#else
#define PUBLISHED(r, n) (progress[r] >= 4 * (n) + 2)
#endif
inline pull_early(n, b) {
  i = 0;
  do
  :: i < R ->
     if
     :: PUBLISHED(i, n) && MAKES_MY_CALL(i, n) && SENDS(matrix[b], me, i) ->
        assert(slots[AT(i, record_buffer[RECORD(i, n)], SLOT(matrix[b], me, i))] ==
               OUTPUT(number_of[b], me))
     :: else
     fi;
     i++
  :: else -> break
  od;
  i = 0
}

inline forget_batch(b) {
  matrix[b] = 0;
  number_of[b] = 0;
  buffer_of[b] = 0
}

/* The receive half of operation n. */
inline receive(n) {
  if
  :: kind_of[n] == DISPATCH ->
#ifndef NO_ROWS_WAIT
     wait_while(OWE_PROGRESS(4 * n + 3));
#endif
     d_step {
       check_rows(batch_of[n], ROW(n, i));
       pinned[buffer_of[batch_of[n]]] = VIEW;
       result = DELIVERED;
       end_operation(n)
     }
  :: else ->
#ifdef READ_THROUGH_BEFORE_READING
     if
     :: unfinished == 1 << n -> read_through[me] = n
     :: else
     fi;
#endif
     d_step { pull_early(n, batch_of[n]) }
#ifndef NO_OUTPUTS_WAIT
     wait_while(OWE_PROGRESS(4 * n + 3));
#endif
     d_step {
       read_records(n);
       pull_outputs(n, batch_of[n]);
       forget_batch(batch_of[n]);
       end_operation(n)
     }
  fi
}

inline oldest_unfinished() {
  k = 1;
  do
  :: !(unfinished >> k & 1) -> k++
  :: else -> break
  od
}

inline newest_unfinished() {
  k = number;
  do
  :: !(unfinished >> k & 1) -> k--
  :: else -> break
  od
}

/* Finishes this rank's operations up to `last`. */
inline finish_through(last) {
  do
  :: atomic { unfinished & ((2 << (last)) - 2) -> oldest_unfinished() }
     receive(k);
     k = 0
  :: else -> break
  od
}

/* This rank's list of rows becomes `content`, in a dispatch that it does not refuse. */
inline write_list(content) {
  if
  :: kind_of[number] == DISPATCH && !poison -> lists[LIST(me, number)] = content
  :: else
  fi
}

/* All lists must be those of dispatch `number`. */
inline read_lists() {
  i = 0;
  do
  :: i < R -> assert(lists[LIST(i, number)] == number); i++
  :: else -> break
  od;
  i = 0
}

/* Writes the record, count row and row list of this rank, and raises `stage` with the second half. */
inline announce(stage, buffer, capacity, free_after) {
#ifdef FLAG_BEFORE_RECORD
  raise_progress(4 * number + stage);
#endif
  d_step {
    record_begin[RECORD(me, number)] = number;
    record_kind[RECORD(me, number)] = kind_of[number];
    record_weights[RECORD(me, number)] = (poison -> 0 : weights);
    record_status[RECORD(me, number)] = poison;
    count_begin[RECORD(me, number)] = number;
    write_list(TORN)
  }
  d_step {
    record_end[RECORD(me, number)] = number;
    record_growth[RECORD(me, number)] = 0;
    record_buffer[RECORD(me, number)] = buffer;
    record_section_rows[RECORD(me, number)] = capacity;
    record_free_after[RECORD(me, number)] = free_after;
    count_end[RECORD(me, number)] = number;
    count_row[RECORD(me, number)] = row;
    write_list(number);
#ifndef FLAG_BEFORE_RECORD
    raise_progress(4 * number + stage);
#endif
    row = 0
  }
}

/* This rank's slot at every destination of its row becomes `content`. */
inline write_rows(content) {
  i = 0;
  do
  :: i < R ->
     if
     :: SENDS(matrix[batch], me, i) ->
        assert(SLOT(matrix[batch], me, i) < committed[i * NB + posted[i]]);
        slots[AT(i, posted[i], SLOT(matrix[batch], me, i))] = content
     :: else
     fi;
     i++
  :: else -> break
  od;
  i = 0
}

#include "rank.pml"
