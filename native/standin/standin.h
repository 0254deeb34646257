/* standin.h: a stand-in Objective-C runtime, Metal and libtorch for tests on Linux.
 *
 * The library exports the very symbols the Metal bridge looks up (objc_msgSend,
 * MTLCreateSystemDefaultDevice, dispatch_sync_f, torch::mps::commit, ...) over a "GPU": one
 * thread that runs committed command buffers in order, with seeded random delays between
 * and inside commands, so that a missing signal or wait shows up as a wrong value. What
 * Metal or PyTorch would crash on aborts here, with a line that says why.
 *
 * This header is what tests use on top: the part of PyTorch (kernels on the stream) and of
 * the driver's seat (seed, owner of the stream, counts). Offsets and counts are in bytes
 * where they say bytes, else in float32 elements.
 */
#ifndef MCCL_STANDIN_H
#define MCCL_STANDIN_H

#include <stdint.h>

#define STANDIN_API extern "C" __attribute__((visibility("default")))

/* Waits for the GPU, then starts over with a new seed; a delay is at most max_delay_us. */
STANDIN_API void standin_reset(uint64_t seed, uint32_t max_delay_us);
/* From now on only the calling thread may touch the stream (0: any thread may). */
STANDIN_API void standin_own_stream(int own);
/* Commits and waits until the GPU has run everything. */
STANDIN_API void standin_synchronize(void);

/* A retained buffer; release it with standin_buffer_release. */
STANDIN_API void* standin_buffer_create(uint64_t bytes, int is_private);
STANDIN_API void standin_buffer_release(void* buffer);
/* Where the bytes are, also of private storage: for building test inputs while the GPU idles. */
STANDIN_API void* standin_buffer_bytes(void* buffer);

/* PyTorch's kernels. x[i] = base + step * (i % 251). */
STANDIN_API void standin_ramp(void* buffer, uint64_t offset, uint64_t n, float base, float step);
/* x = a * x + b */
STANDIN_API void standin_affine(void* buffer, uint64_t offset, uint64_t n, float a, float b);
/* Counts elements that differ from the ramp. */
STANDIN_API void standin_check(void* buffer, uint64_t offset, uint64_t n, float base, float step);
/* Elements of a strided view (4 dimensions, leading ones may be 1) to or from packed memory. */
STANDIN_API void standin_pack(void* view, uint64_t view_bytes, const int64_t* sizes,
                              const int64_t* strides, uint64_t item, void* packed,
                              uint64_t packed_bytes, int unpack);

typedef struct standin_counts {
  uint64_t mismatches; /* elements that standin_check found wrong */
  uint64_t checked;
  uint64_t commits, signals, waits, copies;
  uint64_t waits_that_blocked; /* GPU waits that arrived before their value */
  int64_t live_events, live_buffers, live_commands;
} standin_counts;
STANDIN_API void standin_get_counts(standin_counts* out);

#endif
