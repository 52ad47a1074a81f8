// The kernels of a dispatch and a combine, in the order in which they are issued. Errors of a
// launch are those of cudaGetLastError(). Called by exchange.cc.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/views.h"

namespace ferry::internal {

// place_kernels.cu. Dispatch: count my entries and tell all ranks; wait for their counts and place,
// in the same kernel or in one of its own.
void launch_count(const CudaDispatchView& view, bool and_place, cudaStream_t stream);
void launch_place(const CudaDispatchView& view, cudaStream_t stream);
// dispatch_kernels.cu. Write my rows where they belong; wait for those of all ranks, in the same
// kernel or in one of its own.
void launch_send(const CudaDispatchView& view, bool and_wait, cudaStream_t stream);
void launch_receive(const CudaDispatchView& view, cudaStream_t stream);
// Rows between the experts, on this rank alone; may run before or after the wait.
void launch_gaps(const CudaDispatchView& view, int num_local, cudaStream_t stream);

// combine_kernels.cu. Combine: copy the rows of the experts into the window, if they are not there;
// say where they are; wait for all ranks to say so; sum.
void launch_stage(const CudaCombineView& view, int depth, int processors, cudaStream_t stream);
void launch_publish(const CudaCombineView& view, bool and_wait, cudaStream_t stream);
void launch_await_outputs(const CudaCombineView& view, cudaStream_t stream);
void launch_reduce(const CudaCombineView& view, cudaStream_t stream);

// Of the current device, before any of them runs. Throws Error (load.cuh).
void load_place_kernels();
void load_dispatch_kernels();
void load_combine_kernels();

// Says to all ranks that this one leaves: whatever it has not raised yet does not come.
void launch_leave(const CudaCommon& common, cudaStream_t stream);

// A copy of `bytes` by threads, in vectors: what a kernel that only moves rows takes (bench).
void launch_copy(const void* from, void* to, std::size_t bytes, cudaStream_t stream);

}  // namespace ferry::internal
