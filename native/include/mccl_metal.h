/* mccl_metal.h: the engine's bridge to Metal and to PyTorch's MPS stream.
 *
 * Compiled on every platform: the Objective-C runtime, Metal and libtorch are looked up
 * at run time, so on a machine without them mccl_metal_open fails with a reason.
 *
 * The *encoding* functions (signal, wait, copy) put commands on PyTorch's current command
 * buffer. They follow rule O3: call them only from the thread that owns PyTorch's stream.
 * Tickets may be read and raised from any thread.
 */
#ifndef MCCL_METAL_H
#define MCCL_METAL_H

#include "mccl.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mccl_metal mccl_metal;             /* PyTorch's stream on the default device */
typedef struct mccl_metal_event mccl_metal_event; /* one MTLSharedEvent */

/* torch_library: path of the loaded libtorch_cpu, used where its symbols are not global;
 * may be NULL. Returns NULL on failure; mccl_metal_error says why. */
MCCL_API mccl_metal* mccl_metal_open(const char* torch_library);
MCCL_API void mccl_metal_close(mccl_metal*);

/* The calling thread's last failure in this file. */
MCCL_API const char* mccl_metal_error(void);

/* Name of the GPU, e.g. "Apple M4 Max"; valid until close. */
MCCL_API const char* mccl_metal_device_name(mccl_metal*);

/* A new event with signaled value 0. Destroy only when no command that names it can still run. */
MCCL_API mccl_metal_event* mccl_metal_event_create(mccl_metal*);
MCCL_API void mccl_metal_event_destroy(mccl_metal_event*);
/* raise() never lowers the value. */
MCCL_API void mccl_metal_event_ticket(mccl_metal_event*, mccl_ticket* out);
MCCL_API uint64_t mccl_metal_event_read(mccl_metal_event*);
MCCL_API void mccl_metal_event_raise(mccl_metal_event*, uint64_t value);

/* O1: signals `value` once all work encoded so far is complete; commits, so that the GPU
 * gets there without further calls. MCCL_OK or MCCL_INVALID. */
MCCL_API int mccl_metal_encode_signal(mccl_metal*, mccl_metal_event*, uint64_t value);
/* O2: work encoded from now on starts once the event has reached `value`. */
MCCL_API int mccl_metal_encode_wait(mccl_metal*, mccl_metal_event*, uint64_t value);
/* Copies between two MTLBuffers, in stream order. */
MCCL_API int mccl_metal_encode_copy(mccl_metal*, void* source, uint64_t source_offset,
                                    void* destination, uint64_t destination_offset,
                                    uint64_t bytes);

typedef struct mccl_metal_buffer {
  void* contents;        /* host address, NULL for private storage */
  uint64_t length;       /* bytes */
  uint64_t storage_mode; /* MTLStorageMode: 0 shared, 1 managed, 2 private, 3 memoryless */
} mccl_metal_buffer;

/* `buffer` must be an id<MTLBuffer>. */
MCCL_API int mccl_metal_describe(mccl_metal*, void* buffer, mccl_metal_buffer* out);
/* A new shared MTLBuffer (staging). NULL when the device refuses. */
MCCL_API void* mccl_metal_buffer_create(mccl_metal*, uint64_t bytes);
MCCL_API void mccl_metal_buffer_release(mccl_metal*, void* buffer);

#ifdef __cplusplus
}
#endif
#endif /* MCCL_METAL_H */
