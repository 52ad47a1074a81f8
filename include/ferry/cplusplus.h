// The standard of C++ that the headers for C++ need. The headers for C (ferry.h, aclnn.h) do not
// need C++.
#pragma once

#if __cplusplus < 202002L
#error "ferry's headers for C++ need C++20: compile with -std=c++20"
#endif
