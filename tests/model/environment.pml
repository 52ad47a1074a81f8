/* Chooses the order of operations, and who dies. Included by rank.pml. */

inline play(a, b, c, d, e, f) {
  script[0] = a; script[1] = b;
#if EPOCHS > 1
  script[2] = c; script[3] = d;
#endif
#if EPOCHS > 2
  script[4] = e; script[5] = f;
#endif
}

active proctype environment() {
  atomic {
    if
    :: play(0, 1, 2, 3, 4, 5)
#ifdef HALVES
    :: play(0, 2, 1, 3, 4, 5) /* the next dispatch before this combine */
#if EPOCHS > 2
    :: play(0, 2, 1, 4, 3, 5)
    :: play(0, 1, 2, 4, 3, 5)
    :: play(0, 2, 3, 1, 4, 5)
#endif
#endif
    fi;
    started = 1
  }
#ifdef DEATH
  if
  :: true
  :: atomic {
       if
       :: victim = 0
       :: victim = 1
#if R > 2
       :: victim = 2
#endif
       fi;
       if
       :: !(ended >> victim & 1)
       fi;
       if
       :: killed = 1 << victim
       :: gone = 1 << victim; abort_word[victim] = victim + 1
       :: stopped = 1 << victim
       fi }
     if
     :: true
     :: atomic { stopped -> stopped = 0 } /* it wakes */
     fi
  fi;
  timeout;
  assert((ended | killed | stopped | gone) == ALL_RANKS)
#endif
}
