// A C11 program like that of a user: two ranks as POSIX threads, whose rows and results are
// compared bit for bit with plain loops; both halves, a cached dispatch, and a kept handle.
#include <ferry/ferry.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum {
  kRanks = 2,
  kTokens = 24,
  kHidden = 50,
  kExperts = 6,
  kTopK = 3,
  kLocal = kExperts / kRanks
};

typedef struct Input {
  float tokens[kTokens][kHidden];
  int32_t ids[kTokens][kTopK];
  float weights[kTokens][kTopK];
} Input;

static Input inputs[kRanks];  // every rank reads all of them

typedef struct Seat {
  ferry_group* group;
  int failures;
} Seat;

static void check(Seat* seat, int holds, const char* what) {
  if (holds) return;
  ++seat->failures;
  fprintf(stderr, "rank %d: %s (last error: %s)\n", ferry_group_rank(seat->group), what,
          ferry_last_error_message());
}

// Fills arbitrary numbers. Some ids are -1, and ids may repeat within a token.
static void fill_inputs(void) {
  uint32_t state = 12345;
  for (int r = 0; r < kRanks; ++r) {
    for (int t = 0; t < kTokens; ++t) {
      for (int i = 0; i < kHidden; ++i)
        inputs[r].tokens[t][i] = (float)((state = state * 1664525u + 1013904223u) >> 8) / 997.0f;
      for (int k = 0; k < kTopK; ++k) {
        inputs[r].ids[t][k] = (int32_t)((state = state * 1664525u + 1013904223u) >> 16) % 7 - 1;
        inputs[r].weights[t][k] = (float)((state = state * 1664525u + 1013904223u) >> 8) / 1e7f;
      }
    }
  }
}

// The output of expert `expert` for an element.
static float apply(int expert, float x) { return x * (float)(expert + 2); }

// Compares the rows with the inputs in the order of expert_major: local expert, rank, token, k.
// Then the experts overwrite their rows.
static void check_rows(Seat* seat, const ferry_received* received) {
  const int rank = ferry_group_rank(seat->group);
  float* rows = received->data;
  int64_t n = 0;
  for (int expert = rank * kLocal; expert < (rank + 1) * kLocal; ++expert) {
    for (int i = 0; i < kRanks * kTokens * kTopK; ++i) {
      const int r = i / (kTokens * kTopK), t = i / kTopK % kTokens, k = i % kTopK;
      if (inputs[r].ids[t][k] != expert) continue;
      const int32_t source[3] = {r, t, k};
      if (n >= received->num_rows) break;
      check(seat, !memcmp(rows + n * kHidden, inputs[r].tokens[t], sizeof inputs[r].tokens[t]),
            "row");
      check(seat, !memcmp(received->sources + 3 * n, source, sizeof source), "source");
      check(seat, received->weights[n] == inputs[r].weights[t][k], "weight");
      for (int h = 0; h < kHidden; ++h)
        rows[n * kHidden + h] = apply(expert, rows[n * kHidden + h]);
      ++n;
    }
  }
  check(seat, n == received->num_rows, "number of rows");
}

static void check_results(Seat* seat, float out[kTokens][kHidden]) {
  const Input* mine = &inputs[ferry_group_rank(seat->group)];
  for (int t = 0; t < kTokens; ++t) {
    for (int h = 0; h < kHidden; ++h) {
      float sum = 0.0f;
      for (int k = 0; k < kTopK; ++k) {
        if (mine->ids[t][k] >= 0)
          sum += mine->weights[t][k] * apply(mine->ids[t][k], mine->tokens[t][h]);
      }
      check(seat, !memcmp(&sum, &out[t][h], sizeof sum), "result");
    }
  }
}

static ferry_dispatch_args dispatch_args(int rank) {
  const ferry_dispatch_args args = {FERRY_INIT(ferry_dispatch_args),
                                    .tokens = inputs[rank].tokens,
                                    .num_tokens = kTokens,
                                    .hidden = kHidden,
                                    .dtype = FERRY_TYPE_FP32,
                                    .topk_ids = inputs[rank].ids,
                                    .topk_ids_type = FERRY_INDEX_INT32,
                                    .top_k = kTopK,
                                    .topk_weights = inputs[rank].weights[0]};
  return args;
}

static ferry_combine_args combine_args(int rank, const ferry_handle* handle,
                                       const ferry_received* rows, void* out) {
  const ferry_combine_args args = {FERRY_INIT(ferry_combine_args),
                                   .handle = handle,
                                   .expert_rows = rows->data,
                                   .num_rows = rows->num_rows,
                                   .hidden = rows->hidden,
                                   .dtype = rows->dtype,
                                   .topk_weights = inputs[rank].weights[0],
                                   .out = out,
                                   .out_dtype = FERRY_TYPE_FP32};
  return args;
}

static void round_trips(Seat* seat, ferry_exchange* exchange) {
  const int rank = ferry_group_rank(seat->group);
  static _Thread_local float out[kTokens][kHidden];
  ferry_received received = {FERRY_INIT(ferry_received)};
  ferry_handle* kept = NULL;
  ferry_dispatch_args args = dispatch_args(rank);
  check(seat, ferry_dispatch(exchange, &args, &received) == FERRY_OK, "dispatch");
  check_rows(seat, &received);
  check(seat, ferry_handle_keep(received.handle, &kept) == FERRY_OK, "keep");
  ferry_combine_args combine = combine_args(rank, kept, &received, out);
  check(seat, ferry_combine(exchange, &combine) == FERRY_OK, "combine");
  check_results(seat, out);

  // The same routing again, in halves.
  memset(out, 0, sizeof out);
  args.topk_ids = NULL;
  args.cached = kept;
  uint64_t operation = 0;
  check(seat, ferry_dispatch_send(exchange, &args, &operation) == FERRY_OK, "dispatch_send");
  check(seat, ferry_dispatch_recv(exchange, operation, &received) == FERRY_OK, "dispatch_recv");
  check_rows(seat, &received);
  combine = combine_args(rank, kept, &received, out);
  check(seat, ferry_combine_send(exchange, &combine, &operation) == FERRY_OK, "combine_send");
  check(seat, ferry_combine_recv(exchange, operation) == FERRY_OK, "combine_recv");
  check_results(seat, out);
  check(seat, ferry_received_release(&received) == FERRY_OK, "release");
  ferry_handle_free(kept);
}

static void* play(void* given) {
  Seat* seat = given;
  const ferry_config config = {FERRY_INIT(ferry_config),
                               .max_tokens = kTokens,
                               .hidden = kHidden,
                               .num_experts = kExperts,
                               .top_k = kTopK,
                               .dtype = FERRY_TYPE_FP32,
                               .layout = FERRY_LAYOUT_EXPERT_MAJOR};
  ferry_exchange* exchange = NULL;
  check(seat, ferry_exchange_create(seat->group, &config, &exchange) == FERRY_OK, "create");
  if (exchange) round_trips(seat, exchange);
  ferry_exchange_destroy(exchange);
  ferry_group_destroy(seat->group);
  return NULL;
}

int main(void) {
  ferry_group* groups[kRanks];
  pthread_t threads[kRanks];
  Seat seats[kRanks];
  int failures = 0;
  fill_inputs();
  if (ferry_group_threads(kRanks, NULL, groups) != FERRY_OK) {
    fprintf(stderr, "%s\n", ferry_last_error_message());
    return 1;
  }
  for (int r = 0; r < kRanks; ++r) {
    seats[r] = (Seat){groups[r], 0};
    if (pthread_create(&threads[r], NULL, play, &seats[r]) != 0) return 1;
  }
  for (int r = 0; r < kRanks; ++r) {
    pthread_join(threads[r], NULL);
    failures += seats[r].failures;
  }
  printf("ferry %s: %d failures\n", ferry_version(), failures);
  return failures != 0;
}
