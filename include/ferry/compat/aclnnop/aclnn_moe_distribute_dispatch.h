// aclnnop/aclnn_moe_distribute_dispatch.h of CANN, for programs that are compiled against ferry.
#pragma once

#include "ferry/aclnn.h"
