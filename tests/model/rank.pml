/* The ranks of exchange.pml: what a caller does in any legal order, the send halves, and the
 * environment that chooses the script and who dies. Included by exchange.pml. */

/* The next call may be rejected, or of the wrong kind. */
inline choose_defect() {
  weights = YES;
  if
  :: true
#ifdef TERMS
  :: flips_left > 0 -> weights = NO; flips_left--
  :: empties_left > 0 -> weights = 0; empties_left--
#endif
  :: poisons_left > 0 -> poison = 1; poisons_left--
  :: flips_left > 0 -> flipped = 1; kind_of[number] = !kind_of[number]; flips_left--
  fi
}

inline choose_row() {
#ifdef SPARSE
  if
  :: row = ALL_RANKS
  :: row = ALL_RANKS & ~(1 << me)
  fi
#else
  row = ALL_RANKS
#endif
}

#ifdef NO_PENDING_PIN
#define PINNED(b) (pinned[b] == VIEW)
#elif defined(NO_VIEW_PIN)
#define PINNED(b) (pinned[b] == UNDER_WAY)
#else
#define PINNED(b) pinned[b]
#endif
/* Buffers that the same operation published last (that is, none did) are alike: take the first. */
#define LIKE(a, b) (!PINNED(a) && last_published[a] == last_published[b] && \
                    committed[me * NB + (a)] == committed[me * NB + (b)])

/* Any buffer that is not pinned. */
inline choose_receive_buffer() {
  if
  :: !PINNED(0) -> target = 0
#if NB > 1
  :: !PINNED(1) && !LIKE(0, 1) -> target = 1
#endif
#if NB > 2
  :: !PINNED(2) && !LIKE(0, 2) && !LIKE(1, 2) -> target = 2
#endif
  fi;
  pinned[target] = UNDER_WAY
}

/* Dispatch `number` fails before rows are written: it ends here. */
inline fail_dispatch() {
  if
  :: target != NONE -> pinned[target] = 0
  :: else
  fi;
  failed = failed | 1 << batch;
  forget_batch(batch);
  end_operation(number)
}

/* Step 5: the ranks whose buffers are too small enlarge them, or say that they cannot. */
inline grow() {
#ifdef REFUSAL_IN_RECORD
#define SAY_NOT_GROWN record_status[RECORD(me, number)] = 1
#else
#define SAY_NOT_GROWN record_growth[RECORD(me, number)] = 1
#endif
  if
  :: growing >> me & 1 ->
     atomic {
       if
       :: committed[me * NB + target] = R
       :: refusals_left > 0 -> refusals_left--; SAY_NOT_GROWN
       fi;
       raise_progress(4 * number + 2)
     }
  :: else
  fi;
#ifndef NO_GROWN_WAIT
  wait_while(growing & OWE_PROGRESS(4 * number + 2));
#endif
  d_step {
    i = 0;
    do
    :: i < R ->
#ifdef REFUSAL_IN_RECORD
       if
       :: record_status[RECORD(i, number)] -> result = CAPACITY
       :: else
       fi;
#endif
       assert(record_begin[RECORD(i, number)] == number);
       if
       :: (growing >> i & 1) && record_growth[RECORD(i, number)] -> result = CAPACITY
       :: else
       fi;
       i++
    :: else -> break
    od;
    i = 0
  }
}

/* Steps 6 and 7. */
inline send_rows() {
#ifndef NO_REUSE_GUARD
  if
  :: guard > 0 ->
#ifndef GUARD_WITHOUT_FINISHING
     finish_through(guard);
#endif
     wait_while(OWE_READING(guard))
  :: else
  fi;
#endif
#ifdef FLAG_BEFORE_ROWS
  raise_progress(4 * number + 3);
#endif
  d_step { write_rows(TORN) }
  d_step {
    write_rows(ROW(number, me));
#ifndef LISTS_READ_LATE
    read_lists();
#endif
#ifndef FLAG_BEFORE_ROWS
    raise_progress(4 * number + 3);
#endif
    number_of[batch] = number;
    buffer_of[batch] = target
  }
#ifdef LISTS_READ_LATE
  d_step { read_lists() }
#endif
}

#ifdef SUMS
/* This rank's slice of the sums becomes `content` for every rank. */
inline write_sums(content) {
  i = 0;
  do
  :: i < R -> sums[i * R + me] = content; i++
  :: else -> break
  od;
  i = 0
}

/* Step 4: each rank sums a slice of the columns for all of them. */
inline sum_together() {
#ifdef SUMS_FLAG_FIRST
  raise_progress(4 * number + 1);
#endif
  d_step { write_sums(TORN) }
  d_step {
    write_sums(number);
#ifndef SUMS_FLAG_FIRST
    raise_progress(4 * number + 1)
#endif
  }
#ifndef NO_SUMS_WAIT
  wait_while(OWE_PROGRESS(4 * number + 1));
#endif
  d_step {
    i = 0;
    do
    :: i < R -> assert(sums[me * R + i] == number); i++
    :: else -> break
    od;
    i = 0
  }
}
#endif

/* Steps 2 to 7 of a dispatch. */
inline send_dispatch() {
  atomic {
    if
    :: poison || flipped -> target = NONE
    :: else -> choose_receive_buffer(); choose_row()
    fi
  }
  announce((poison -> 3 : 0), target, (target == NONE -> 0 : committed[me * NB + target]),
           (target == NONE -> 0 : last_published[target]));
#if defined(REJECTED_RETURNS_AT_ONCE)
  if
  :: poison
  :: !poison -> wait_while(OWE_PROGRESS(4 * number))
  fi;
#elif defined(PEER_REJECTED_RETURNS_AT_ONCE)
  if
  :: OWE_PROGRESS(4 * number) == 0
  :: MASK(POISONED, number) -> poison = 1
  fi;
#elif !defined(NO_COUNTS_WAIT)
  wait_while(OWE_PROGRESS(4 * number));
#endif
  d_step {
#if defined(REJECTED_RETURNS_AT_ONCE) || defined(PEER_REJECTED_RETURNS_AT_ONCE)
    if
    :: poison -> result = REJECTED
    :: else -> read_records(number)
    fi;
#else
    read_records(number);
#endif
    if
    :: result == DELIVERED -> read_matrix(number)
    :: else
    fi
  }
#ifdef SUMS
  if
  :: result == DELIVERED -> sum_together()
  :: else
  fi;
#endif
  if
  :: growing -> grow()
  :: else
  fi;
  if
  :: result == DELIVERED -> result = 0; send_rows()
  :: else -> d_step { fail_dispatch() }
  fi;
  d_step {
    growing = 0;
    guard = 0;
    i = 0;
    do
    :: i < R -> posted[i] = 0; i++
    :: else -> break
    od;
    i = 0
  }
}

/* A buffer for copied outputs is chosen only if it is free now, since a combine never waits before
 * it has announced itself. */
#ifdef NO_COPY_GUARD
#define FREE(b) !pinned[b]
#else
#define FREE(b) (!pinned[b] && OWE_READING(last_published[b]) == 0)
#endif
#define FITS(b) (ROWS(matrix[batch], me) <= committed[me * NB + b])

/* Step 2 of a combine. The caller is done with the rows of the batch. */
inline send_combine() {
  atomic {
    if
    :: flipped -> failed = failed | 1 << batch; target = NONE
    :: else ->
       check_rows(batch, ROW(number_of[batch], i));
       if
       :: poison -> target = NONE
       :: !poison -> target = buffer_of[batch]
#ifdef COPIES
#ifdef COPY_WAITS
       :: !poison && !pinned[0] && FITS(0) -> target = 0
#else
       :: !poison && FREE(0) && FITS(0) -> target = 0
#endif
#if NB > 1
       :: !poison && FREE(1) && FITS(1) && !LIKE(0, 1) -> target = 1
#endif
#if NB > 2
       :: !poison && FREE(2) && FITS(2) && !LIKE(0, 2) && !LIKE(1, 2) -> target = 2
#endif
#endif
       fi;
       pinned[buffer_of[batch]] = 0
    fi
  }
#ifdef COPY_WAITS
  if
  :: target != NONE && target != buffer_of[batch] ->
     finish_through(last_published[target]);
     wait_while(OWE_READING(last_published[target]))
  :: else
  fi;
#endif
  d_step {
    if
    :: target != NONE ->
#ifndef OUTPUTS_AFTER_FLAG
       write_outputs(batch, target);
#endif
       last_published[target] = number
    :: else
    fi;
    buffer_of[batch] = NONE
  }
  announce(3, target, 0, 0)
#ifdef OUTPUTS_AFTER_FLAG
  ;
  d_step {
    if
    :: target != NONE -> write_outputs(batch, target)
    :: else
    fi
  }
#endif
}

/* The next call of the script. */
inline call() {
  atomic {
    number++;
    batch = script[position] / 2;
    kind_of[number] = script[position] & 1;
    batch_of[number] = batch;
    position++;
    unfinished = unfinished | 1 << number;
    choose_defect()
  }
#ifndef NO_SETTLE
  if
  :: number > D -> finish_through(number - D)
  :: else
  fi;
#ifndef NO_RING_CHECK
  /* Why 2 D slots are enough: nobody still reads the record that this operation's record replaces. */
  assert(number <= 2 * D || OWE_READING(number - 2 * D) == 0);
#endif
#endif
#ifdef REJECTED_KEEPS_NUMBER
  if
  :: poison ->
     d_step {
       if
       :: kind_of[number] == COMBINE -> pinned[buffer_of[batch]] = 0
       :: else
       fi;
       unfinished = unfinished & ~(1 << number);
       kind_of[number] = 0;
       batch_of[number] = 0;
       number--;
       failed = failed | 1 << batch;
       forget_batch(batch)
     }
  :: else ->
#endif
  if
  :: kind_of[number] == DISPATCH ->
     if
     :: flipped && number_of[batch] -> d_step {
          check_rows(batch, ROW(number_of[batch], i));
          pinned[buffer_of[batch]] = 0 }
     :: else
     fi;
     send_dispatch()
  :: else -> send_combine()
  fi;
#ifdef REJECTED_KEEPS_NUMBER
  fi;
#endif
  if
  :: poison && kind_of[number] == COMBINE ->
#ifndef REJECTED_RETURNS_AT_ONCE
     wait_while(OWE_PROGRESS(4 * number + 3));
#endif
     d_step { result = REJECTED; forget_batch(batch); end_operation(number) }
  :: else
  fi;
  d_step { poison = 0; flipped = 0; weights = 0; target = 0; batch = 0 }
}

#define NEXT_BATCH (script[position] / 2)
#define NEXT_IS_COMBINE (position < OPS && (script[position] & 1) == COMBINE)
#define NEXT_FAILED (NEXT_IS_COMBINE && (failed >> NEXT_BATCH & 1))
/* A combine needs the rows of its dispatch. */
#define NEXT_READY (position < OPS && !NEXT_FAILED && \
  (!NEXT_IS_COMBINE || pinned[buffer_of[NEXT_BATCH]] == VIEW))

active [R] proctype rank() RUNS {
  byte number;     /* of this rank's last operation */
  byte position;   /* in the script */
  byte unfinished; /* mask of numbers */
  bit kind_of[OPS + 1];
  byte batch_of[OPS + 1];
  short matrix[EPOCHS];
  byte number_of[EPOCHS]; /* of the batch's dispatch */
  byte buffer_of[EPOCHS];
  byte failed; /* mask of batches */
  byte pinned[NB];
  byte last_published[NB]; /* the last operation that published rows of a buffer */
  /* The current call. */
  bit poison, flipped;
  byte weights, terms;
  byte batch, target, row, growing, guard, result, posted[R];
  byte i, k;
#ifdef DEATH
  byte seen, suspects;
#endif

  started;
  do
  :: atomic { NEXT_FAILED -> position++ }
  :: atomic { NEXT_READY -> skip }
     call();
#ifndef HALVES
     finish_through(number)
#endif
#ifdef HALVES
  :: atomic { unfinished ->
       if
       :: oldest_unfinished()
       :: unfinished & (unfinished - 1) -> newest_unfinished()
       fi }
     receive(k);
     k = 0
#endif
  :: atomic { position == OPS && !unfinished -> break }
  od;
#ifdef DEATH
  goto done;
broken:
  skip;
#ifndef NO_ABORT_WRITE
  atomic {
    if
    :: suspects ->
       do
       :: suspects & 1 -> break
       :: else -> suspects = suspects >> 1; i++
       od;
       abort_word[me] = i + 1
    :: else ->
       do
       :: abort_word[i] == 0 -> i++
       :: else -> break
       od;
       k = abort_word[i];
       abort_word[me] = k
    fi;
    assert(abort_word[me] == victim + 1)
  }
#endif
#ifdef BROKEN_BUFFERS_ARE_REUSED
  d_step {
    i = 0; k = 0;
    do
    :: k < NB * R && pinned[k / R] == UNDER_WAY -> slots[AT(me, 0, k)] = MINE; k++
    :: k < NB * R && pinned[k / R] != UNDER_WAY -> k++
    :: else -> break
    od
  }
  d_step {
    k = 0;
    do
    :: k < NB * R ->
       assert(pinned[k / R] != UNDER_WAY || slots[AT(me, 0, k)] == MINE);
       k++
    :: else -> break
    od
  }
#endif
  /* Rows that the caller holds do not change, even if a stopped rank wakes and writes. */
  d_step {
    k = 0;
    do
    :: k < EPOCHS && number_of[k] && buffer_of[k] != NONE ->
       if
       :: pinned[buffer_of[k]] == VIEW -> check_rows(k, ROW(number_of[k], i))
       :: else
       fi;
       k++
    :: k < EPOCHS && !(number_of[k] && buffer_of[k] != NONE) -> k++
    :: else -> break
    od
  }
done:
  ended = ended | 1 << me
#endif
}

#include "environment.pml"
