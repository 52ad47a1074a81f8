// The one macro of the public headers: it marks the names that the shared library exports.
#pragma once

#define FERRY_EXPORT __attribute__((visibility("default")))
