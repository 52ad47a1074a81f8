// The planner in C: the best strategy of a machine that is described by a text. docs/planning.md.
#include <ferry/ferry_plan.h>
#include <stdio.h>

int main(void) {
  ferry_config config = {
      FERRY_INIT(ferry_config), .max_tokens = 4096, .hidden = 7168,
      .num_experts = 256,       .top_k = 8,         .layout = FERRY_LAYOUT_EXPERT_MAJOR};
  ferry_plan_args args = {FERRY_INIT(ferry_plan_args), .machine = "ubbv2:2@port10",
                          .config = &config};
  ferry_prediction best = {FERRY_INIT(ferry_prediction)};
  ferry_plan* plan = NULL;
  ferry_code code = ferry_plan_create(&args, &plan);
  if (code == FERRY_OK) code = ferry_plan_prediction(plan, 0, &best);
  if (code == FERRY_OK)
    printf("%s: %g us. %s\n", best.strategy, best.dispatch_us + best.combine_us,
           ferry_plan_sentence(plan));
  else
    fprintf(stderr, "%s: %s\n", ferry_code_name(code), ferry_last_error_message());
  ferry_plan_destroy(plan);
  return code == FERRY_OK ? 0 : 1;
}
