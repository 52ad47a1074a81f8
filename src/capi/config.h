// ferry_config, C to C++. libferry and libferry_plan both read it.
#pragma once

#include "ferry/config.h"
#include "ferry/ferry.h"

namespace ferry::capi {

ExchangeConfig to_config(const ferry_config* given);

}  // namespace ferry::capi
