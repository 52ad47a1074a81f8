// The standard of C++ that the headers for C++ need. Those for C (ferry.h, aclnn.h) need none.
#pragma once

#if __cplusplus < 202002L
#error "ferry's headers for C++ need C++20: compile with -std=c++20"
#endif
