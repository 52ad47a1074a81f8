// A C program whose signal handler ends waits of ferry long before their deadline: a barrier that
// one of two ranks enters, and a meeting to which the other rank does not come.
#define _DEFAULT_SOURCE  // usleep and kill are no part of standard C
#include <ferry/ferry.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t stop;
static atomic_int asked;
static int failures;

static void on_signal(int number) {
  (void)number;
  stop = 1;
}

static int stopped(void* context) {
  atomic_fetch_add((atomic_int*)context, 1);
  return stop;
}

// Sends the signal once ferry has asked, so while a rank waits.
static void* send_signal(void* context) {
  (void)context;
  while (atomic_load(&asked) == 0) usleep(1000);
  kill(getpid(), SIGINT);
  return NULL;
}

static void check_interrupted(ferry_code code, const char* what) {
  if (code == FERRY_INTERRUPTED && ferry_last_error_rank() == 0 &&
      strstr(ferry_last_error_message(), "interrupted"))
    return;
  ++failures;
  fprintf(stderr, "%s: code %d, rank %d: %s\n", what, (int)code, (int)ferry_last_error_rank(),
          ferry_last_error_message());
}

static pthread_t start_signal(void) {
  pthread_t thread;
  signal(SIGINT, on_signal);  // each time: C leaves open whether the handler stays after a signal
  stop = 0;
  atomic_store(&asked, 0);
  if (pthread_create(&thread, NULL, send_signal, NULL) != 0) ++failures;
  return thread;
}

int main(void) {
  const ferry_group_options options = {FERRY_INIT(ferry_group_options),
                                       .deadline_ns = 600 * INT64_C(1000000000),
                                       .interrupted = stopped, .interrupted_context = &asked};
  ferry_group* groups[2] = {NULL, NULL};
  if (ferry_group_threads(2, &options, groups) != FERRY_OK) {
    fprintf(stderr, "%s\n", ferry_last_error_message());
    return 1;
  }
  pthread_t thread = start_signal();
  check_interrupted(ferry_group_barrier(groups[0]), "barrier");
  pthread_join(thread, NULL);
  check_interrupted(ferry_group_barrier(groups[1]), "barrier of the other rank");
  ferry_group_destroy(groups[0]);
  ferry_group_destroy(groups[1]);

  char address[64];
  snprintf(address, sizeof address, "capi-interrupt-%d", (int)getpid());
  thread = start_signal();
  check_interrupted(ferry_group_connect(address, 0, 2, &options, &groups[0]), "meeting");
  pthread_join(thread, NULL);
  ferry_group_destroy(groups[0]);
  return failures != 0;
}
