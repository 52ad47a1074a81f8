// A library with names of CANN's: each function returns a number that ferry's function of this name
// does not return.
#pragma once

extern "C" {
int aclInit(const char* config_path);
int aclrtGetDeviceCount(unsigned* count);
int HcclGetRootInfo(void* root_info);
int aclnnMoeDistributeDispatchV4(void* workspace, unsigned long workspace_size, void* executor,
                                 void* stream);
}
