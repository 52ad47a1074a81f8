// The one macro of the public headers: what the shared library shows.
#pragma once

#define FERRY_EXPORT __attribute__((visibility("default")))
