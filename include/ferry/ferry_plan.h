// The planner in C: the times of dispatch and combine on a machine that is described by a text. The
// functions are in libferry_plan (CMake: ferry::plan, pkg-config: ferry-plan); structs and errors
// are those of ferry/ferry.h. docs/planning.md has an example.
#pragma once

#include "ferry/ferry.h"

// NOLINTBEGIN(readability-identifier-naming)

#ifdef __cplusplus
extern "C" {
#endif

// No group is needed. FERRY_INVALID_ARGUMENT names the line of the machine, the value and the
// limit.
FERRY_EXPORT ferry_code ferry_plan_create(const ferry_plan_args* args, ferry_plan** plan);
FERRY_EXPORT void ferry_plan_destroy(ferry_plan* plan);  // NULL is allowed
// The number of strategies that the machine can run; 0 for NULL.
FERRY_EXPORT int32_t ferry_plan_size(const ferry_plan* plan);
// index 0: the best strategy.
FERRY_EXPORT ferry_code ferry_plan_prediction(const ferry_plan* plan, int32_t index,
                                              ferry_prediction* prediction);
// The reason why strategy 0 is the best. The text is valid until ferry_plan_destroy; NULL for NULL.
FERRY_EXPORT const char* ferry_plan_sentence(const ferry_plan* plan);

#ifdef __cplusplus
}
#endif

// NOLINTEND(readability-identifier-naming)
