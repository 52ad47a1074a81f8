/* How a rank sleeps and is woken (src/group/wait.cc): one rank waits for the flags of two peers,
 * and again for their next values. It says that it sleeps, reads its doorbell, looks at the flag
 * once more, and sleeps only while the doorbell is as it read it. A peer raises its flag, and rings
 * if the other says it sleeps. A lost wake-up is an invalid end state; in the library it would cost
 * one bounded sleep. check.py runs this, and each #ifdef, which must fail.
 *
 * The flag's store may linger in the peer's store buffer (`buffered`), unless it is sequentially
 * consistent or a read-modify-write, which empty the buffer. The same holds for the sleeper's store
 * to `sleeping` before its look at the flag. */

#define ROUNDS 2

byte flag[2];
byte buffered[2]; /* the value on its way to flag, 0: none */
bit sleeping;
bit sleeping_buffered;
byte doorbell;
bit in_futex;

active [2] proctype raiser() {
  byte value;
  do
  :: value < ROUNDS ->
     value++;
     buffered[_pid] = value;
#ifndef FLAG_STORE_MAY_LINGER
     buffered[_pid] == 0; /* the buffer drains before the next load */
#endif
     if
     :: sleeping ->
#ifndef NO_RING
        doorbell++;
        in_futex = 0
#endif
     :: !sleeping
     fi
  :: else -> break
  od
}

active proctype sleeper() {
  byte value, rung, peer;
  do
  :: value < ROUNDS ->
     value++;
     peer = 0;
     do
     :: peer < 2 && flag[peer] >= value -> peer++
     :: peer < 2 && flag[peer] < value ->
#ifdef SLEEPING_STORE_MAY_LINGER
        sleeping_buffered = 1;
#else
        sleeping = 1;
#endif
#ifndef DOORBELL_READ_LAST
        rung = doorbell;
#endif
        if
#ifdef NO_SECOND_LOOK
        :: true ->
#else
        :: flag[peer] >= value
        :: flag[peer] < value ->
#endif
#ifdef DOORBELL_READ_LAST
           rung = doorbell;
#endif
           if
           :: atomic { doorbell == rung -> in_futex = 1 }
              in_futex == 0
           :: doorbell != rung
           fi
        fi;
        atomic { sleeping = 0; sleeping_buffered = 0 }
     :: peer == 2 -> break
     od
  :: else -> break
  od
}

/* Store buffers drain at any time. */
active proctype memory() {
end:
  do
  :: d_step { buffered[0] -> flag[0] = buffered[0]; buffered[0] = 0 }
  :: d_step { buffered[1] -> flag[1] = buffered[1]; buffered[1] = 0 }
  :: d_step { sleeping_buffered -> sleeping = 1; sleeping_buffered = 0 }
  od
}
