// A stand-in for libascendcl.so, for beside_cann_test.cc.
#include "fake_ascendcl.h"

int aclInit(const char*) { return 1001; }
int aclrtGetDeviceCount(unsigned*) { return 1002; }
int HcclGetRootInfo(void*) { return 1003; }
int aclnnMoeDistributeDispatchV4(void*, unsigned long, void*, void*) { return 1004; }
