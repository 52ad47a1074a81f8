// The kernels of a dispatch and a combine, in the order in which they are issued. The error of a
// launch is that of cudaGetLastError().
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/views.h"

namespace ferry::internal {

// place_kernels.cu: the first half of a dispatch. Counts the entries of this rank and sends the
// counts to all ranks; then, in the same kernel or in another, waits for the counts of all ranks
// and places the rows.
void launch_count(const CudaDispatchView& view, bool and_place, cudaStream_t stream);
void launch_place(const CudaDispatchView& view, cudaStream_t stream);
// dispatch_kernels.cu: the second half of a dispatch. Writes the rows of this rank to their places;
// then, in the same kernel or in another, waits for the rows of all ranks.
void launch_send(const CudaDispatchView& view, bool and_wait, cudaStream_t stream);
void launch_receive(const CudaDispatchView& view, cudaStream_t stream);
// Fills the rows between the experts. Needs no other rank, and may run before or after the wait.
void launch_gaps(const CudaDispatchView& view, int num_local, cudaStream_t stream);

// combine_kernels.cu: a combine. Copies the rows of the experts into the window, if they are not
// there; sends their offset to all ranks; waits for the offsets of all ranks; sums.
void launch_stage(const CudaCombineView& view, int depth, int processors, cudaStream_t stream);
void launch_publish(const CudaCombineView& view, bool and_wait, cudaStream_t stream);
void launch_await_outputs(const CudaCombineView& view, cudaStream_t stream);
void launch_reduce(const CudaCombineView& view, cudaStream_t stream);

// Load the kernels on the current device, before any of them runs. Throw Error (load.cuh).
void load_place_kernels();
void load_dispatch_kernels();
void load_combine_kernels();

// Raises in all windows the flag that this rank has departed: it raises no more flags after it.
void launch_leave(const CudaCommon& common, cudaStream_t stream);

// A copy of `bytes` in vectors, by threads: the benchmark compares the other kernels with it.
void launch_copy(const void* from, void* to, std::size_t bytes, cudaStream_t stream);

}  // namespace ferry::internal
