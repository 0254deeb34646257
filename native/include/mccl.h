/* mccl.h: the only door into the native engine.
 *
 * Everything Python needs is here; nothing else is exported. The library knows
 * neither Python nor torch. All structs are plain C, little-endian, naturally
 * aligned; every call may be made from any thread unless said otherwise, and
 * none of them needs (or takes) the GIL.
 *
 * Words used as in docs/design.md: rank and peer are group ranks; counts and
 * offsets are in elements of the operation's dtype; times are microseconds.
 */
#ifndef MCCL_H
#define MCCL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define MCCL_API
#else
#define MCCL_API __attribute__((visibility("default")))
#endif

#define MCCL_ABI_VERSION 1

/* ---- vocabulary ------------------------------------------------------- */

typedef enum mccl_dtype {
  MCCL_U8 = 0,
  MCCL_I8 = 1,
  MCCL_I16 = 2,
  MCCL_I32 = 3,
  MCCL_I64 = 4,
  MCCL_F16 = 5,
  MCCL_BF16 = 6,
  MCCL_F32 = 7,
  MCCL_F64 = 8,
  MCCL_BOOL = 9,
  MCCL_C64 = 10, /* complex of two f32 */
  MCCL_C128 = 11 /* complex of two f64 */
} mccl_dtype;

typedef enum mccl_redop {
  MCCL_SUM = 0,
  MCCL_AVG = 1,
  MCCL_PRODUCT = 2,
  MCCL_MIN = 3,
  MCCL_MAX = 4,
  MCCL_BAND = 5,
  MCCL_BOR = 6,
  MCCL_BXOR = 7,
  MCCL_PREMUL_SUM = 8,
  MCCL_NO_REDOP = 255
} mccl_redop;

typedef enum mccl_collective {
  MCCL_ALL_REDUCE = 0,
  MCCL_REDUCE_SCATTER = 1,
  MCCL_ALL_GATHER = 2,
  MCCL_BROADCAST = 3,
  MCCL_REDUCE = 4,
  MCCL_GATHER = 5,
  MCCL_SCATTER = 6,
  MCCL_ALL_TO_ALL = 7,
  MCCL_BARRIER = 8,
  MCCL_SEND = 9,
  MCCL_RECV = 10
} mccl_collective;

/* Return codes. 0 is success; every failure of a communicator is also kept by
 * it and can be read with mccl_comm_error. */
typedef enum mccl_status {
  MCCL_OK = 0,
  MCCL_PENDING = 1,        /* not complete yet (test) */
  MCCL_WAIT_TIMEOUT = 2,   /* this wait's own limit passed; the operation goes on */
  MCCL_BROKEN = 3,         /* the communicator is broken; see mccl_comm_error */
  MCCL_INVALID = 4,        /* the arguments make no sense; see mccl_last_error */
  MCCL_FORKED = 5          /* called in a forked child that does not own the engine */
} mccl_status;

/* What broke a communicator, by culprit. */
typedef enum mccl_failure {
  MCCL_FAIL_NONE = 0,
  MCCL_FAIL_PEER_DIED = 1,     /* connection closed or reset without goodbye */
  MCCL_FAIL_PEER_SILENT = 2,   /* no sign of life for peer_timeout */
  MCCL_FAIL_PEER_LEFT = 3,     /* orderly goodbye while we still needed it */
  MCCL_FAIL_TIMEOUT = 4,       /* operation's own timeout passed */
  MCCL_FAIL_MISMATCH = 5,      /* ranks called different things */
  MCCL_FAIL_CORRUPT = 6,       /* bytes on the wire are not what was sent */
  MCCL_FAIL_ABORTED = 7,       /* abort() was called on this rank */
  MCCL_FAIL_REMOTE = 8,        /* another rank reported one of the above */
  MCCL_FAIL_INTERNAL = 9       /* our bug, or the system refused a resource */
} mccl_failure;

/* ---- plans ------------------------------------------------------------ */

/* A step moves or combines `count` elements, at least one. Sends to one peer leave, and
 * receives from one peer land, in the order of the plan (FIFO a connection):
 * the next step on a connection starts only when the one before is complete. */
typedef enum mccl_step_kind {
  MCCL_STEP_SEND = 0,        /* src -> peer */
  MCCL_STEP_RECV = 1,        /* peer -> dst */
  MCCL_STEP_RECV_REDUCE = 2, /* dst[x] = src[x] (+) incoming[x] */
  MCCL_STEP_COPY = 3,        /* dst[x] = src[x] (local) */
  MCCL_STEP_REDUCE = 4       /* dst[x] = dst[x] (+) src[x] (local) */
} mccl_step_kind;

typedef enum mccl_step_flag {
  /* The value written is the collective's final value for these elements:
   * AVG divides here (once), and a reduced wire dtype rounds here. */
  MCCL_STEP_FINAL = 1,
  /* Operand order: combine(incoming, src) for RECV_REDUCE, combine(src, dst)
   * for REDUCE. Makes MIN/MAX of +-0 and NaN payloads the same on every rank. */
  MCCL_STEP_INCOMING_FIRST = 2
} mccl_step_flag;

typedef struct mccl_step {
  uint8_t kind;
  uint8_t flags;
  uint16_t reserved;
  int32_t peer; /* -1 for local steps */
  uint32_t dst_buffer;
  uint32_t src_buffer;
  uint64_t dst_offset;
  uint64_t src_offset;
  uint64_t count;
  uint32_t first_dep; /* index into the plan's array of deps */
  uint32_t n_deps;
} mccl_step;

typedef enum mccl_dep_kind {
  MCCL_DEP_STREAM = 0, /* element x may move once element x of that step is done */
  MCCL_DEP_FULL = 1    /* may start once that step is complete */
} mccl_dep_kind;

typedef struct mccl_dep {
  uint32_t step; /* an earlier step of the plan */
  uint32_t kind;
} mccl_dep;

/* Buffers 0 .. n_external-1 are the caller's; scratch buffers follow. */
typedef struct mccl_scratch {
  uint64_t count;      /* elements */
  uint32_t accumulate; /* 1: of the accumulation dtype (f32 for f16/bf16), else of the dtype */
  uint32_t reserved;
} mccl_scratch;

typedef struct mccl_plan mccl_plan;

/* Copies its arguments. NULL when they are inconsistent (mccl_last_error says how). */
MCCL_API mccl_plan* mccl_plan_create(int32_t world, int32_t rank, uint32_t n_external,
                                     const mccl_scratch* scratch, uint32_t n_scratch,
                                     const mccl_step* steps, uint32_t n_steps,
                                     const mccl_dep* deps, uint32_t n_deps);
/* Operations already submitted keep what they need. */
MCCL_API void mccl_plan_destroy(mccl_plan*);

/* ---- communicators ---------------------------------------------------- */

typedef struct mccl_comm mccl_comm;

typedef struct mccl_comm_config {
  int32_t rank;
  int32_t size;
  uint64_t epoch;          /* same on all members; differs between incarnations of a group */
  int64_t peer_timeout_us; /* silence of a peer while operations are in flight */
  uint64_t park_bytes;     /* point-to-point data held before its recv, a communicator */
  uint64_t spin_us;        /* busy-wait before blocking while traffic is expected */
  uint32_t yield_spin;     /* 1: sched_yield between tries (more ranks than cores) */
  uint32_t checksum;       /* 1: CRC32C a piece on the wire; must be equal on all members */
  uint32_t record_capacity;/* flight recorder entries */
  uint32_t send_thread;    /* 1: big sends on a thread of their own (cores to spare) */
  char name[64];           /* group name for messages */
} mccl_comm_config;

MCCL_API mccl_comm* mccl_comm_create(const mccl_comm_config*);

/* Names peers in error messages, e.g. "mac-17 (10.0.0.17) pid 4242". */
MCCL_API int mccl_comm_set_peer_label(mccl_comm*, int32_t peer, const char* label);

typedef enum mccl_channel {
  MCCL_COLLECTIVE_TX = 0,
  MCCL_COLLECTIVE_RX = 1,
  MCCL_P2P_TX = 2,
  MCCL_P2P_RX = 3,
  MCCL_CONTROL = 4 /* both ways; one a pair is enough, two do no harm */
} mccl_channel;

/* Hands over connected, authenticated stream sockets (n_fds > 1: rails of one
 * striped link; CONTROL takes one). The engine owns the descriptors from here,
 * also on failure. Data links are one-way: the sender connects. */
MCCL_API int mccl_comm_add_link(mccl_comm*, int32_t peer, uint32_t channel, const int32_t* fds,
                                uint32_t n_fds);
MCCL_API int mccl_comm_has_link(mccl_comm*, int32_t peer, uint32_t channel);

/* ---- tickets (handoff rules O1 and O2) -------------------------------- */

/* A monotonic counter shared with a GPU. read() and raise() are called on engine
 * threads and must be thread-safe and quick. */
typedef struct mccl_ticket {
  uint64_t (*read)(void* context);
  void (*raise)(void* context, uint64_t value);
  void* context;
} mccl_ticket;

/* A pair of functions over a plain 64-bit word in host memory (CUDA, tests). */
MCCL_API void mccl_word_ticket(volatile uint64_t* word, mccl_ticket* out);

/* Progressive handoff of one external buffer: elements [offset, offset+count) may
 * be read once `produced` reaches produced_value; `consumed` is raised to
 * consumed_value once they hold their final value and nothing reads them. */
typedef struct mccl_piece {
  uint64_t offset;
  uint64_t count;
  uint64_t produced_value;
  uint64_t consumed_value;
} mccl_piece;

/* ---- operations ------------------------------------------------------- */

typedef struct mccl_op mccl_op;

typedef enum mccl_op_flag {
  MCCL_OP_SYNC = 1 /* the caller waits at once: run on its thread when the engine is idle */
} mccl_op_flag;

typedef struct mccl_op_desc {
  uint32_t collective; /* mccl_collective */
  uint32_t dtype;
  uint32_t redop;
  uint32_t wire_dtype; /* equals dtype unless compressed on the wire */
  int32_t root;        /* -1 where there is none */
  uint32_t flags;
  uint64_t count; /* for the fingerprint: the same on all ranks of this call */
  const mccl_plan* plan;
  void* const* buffers; /* n_external pointers; may be NULL for empty buffers */
  double premul;        /* factor of PREMUL_SUM */
  int64_t timeout_us;   /* from submission; < 0: none */
  uint64_t tag; /* opaque to the engine; returned in records */
  /* Handoff: NULL tickets mean "ready now" / "nobody to tell". Without pieces the
   * whole operation waits for produced_value and raises consumed_value. */
  const mccl_ticket* produced;
  const mccl_ticket* consumed;
  uint64_t produced_value;
  uint64_t consumed_value;
  const mccl_piece* pieces; /* of external buffer 0 (input) and of the last external buffer (output) */
  uint32_t n_pieces;
  uint32_t reserved;
} mccl_op_desc;

/* Takes the sequence number, queues the operation and returns. With MCCL_OP_SYNC
 * it returns when the operation is complete (status MCCL_OK) or failed; given `op`, it
 * may also return MCCL_PENDING after a while, so that the caller can wait in slices. *op
 * is NULL on return when the operation completed; otherwise release it. */
MCCL_API int mccl_submit(mccl_comm*, const mccl_op_desc*, mccl_op** op);

typedef struct mccl_p2p_desc {
  uint32_t send; /* 1 send, 0 receive */
  int32_t peer;  /* receive: -1 any source */
  uint64_t bytes;
  void* buffer;
  uint64_t tag;
  uint32_t dtype; /* for messages and records only */
  uint32_t flags;
  int64_t timeout_us;
  const mccl_ticket* produced;
  const mccl_ticket* consumed;
  uint64_t produced_value;
  uint64_t consumed_value;
} mccl_p2p_desc;

MCCL_API int mccl_p2p(mccl_comm*, const mccl_p2p_desc*, mccl_op** op);

/* timeout_us < 0: no limit of its own (the operation's applies). */
MCCL_API int mccl_op_wait(mccl_op*, int64_t timeout_us);
MCCL_API int mccl_op_test(mccl_op*);

typedef struct mccl_op_info {
  uint64_t sequence;
  int32_t source; /* receive: who sent it */
  uint32_t status;
  int64_t submitted_us; /* CLOCK_REALTIME */
  int64_t started_us;
  int64_t completed_us;
} mccl_op_info;
MCCL_API int mccl_op_get_info(mccl_op*, mccl_op_info*);
MCCL_API void mccl_op_release(mccl_op*);

/* Blocks until some operation of this process completes after `cursor` (pass 0
 * first), or timeout; returns the new cursor. For one thread that completes
 * futures. */
MCCL_API uint64_t mccl_wait_completion(uint64_t cursor, int64_t timeout_us);

/* ---- failure ---------------------------------------------------------- */

typedef struct mccl_error {
  uint32_t failure;    /* mccl_failure */
  int32_t culprit;     /* group rank to blame, -1 unknown */
  int32_t reporter;    /* group rank that noticed it first */
  uint32_t collective; /* mccl_collective in flight, 255 none */
  uint64_t sequence;
  int64_t waited_us;
  char phase[32]; /* "connect", "header", "receive", "send", "ticket", "idle" */
  char message[768];
} mccl_error;

MCCL_API int mccl_comm_error(mccl_comm*, mccl_error* out); /* MCCL_OK: none */
/* Breaks the communicator here and, through control links, everywhere. */
MCCL_API int mccl_comm_abort(mccl_comm*, const char* reason);
/* The caller (e.g. the connector) found the failure. */
MCCL_API int mccl_comm_fail(mccl_comm*, const mccl_error*);
/* Orderly end: says goodbye, waits for nothing. Later calls fail with PEER_LEFT/ABORTED. */
MCCL_API void mccl_comm_destroy(mccl_comm*);
/* The calling thread's last MCCL_INVALID explanation. */
MCCL_API const char* mccl_last_error(void);

/* ---- observation ------------------------------------------------------ */

typedef struct mccl_stats {
  uint64_t operations, failed;
  uint64_t bytes_sent, bytes_received; /* payload and headers of data links */
  uint64_t bytes_reduced;              /* output bytes of reductions */
  uint64_t parked_bytes, parked_peak;
  int64_t busy_us;            /* time with at least one operation in flight */
  int64_t blocked_send_us;    /* nothing could move: waiting for a peer to take bytes */
  int64_t blocked_receive_us; /* ... for a peer's bytes */
  int64_t blocked_ticket_us;  /* ... for a produced ticket */
  int64_t reduce_us;
} mccl_stats;
MCCL_API int mccl_comm_get_stats(mccl_comm*, mccl_stats*);
MCCL_API int mccl_comm_reset_stats(mccl_comm*);

typedef struct mccl_record {
  uint64_t sequence;
  uint32_t collective, dtype, redop;
  int32_t root; /* or peer for send/recv */
  uint64_t count;
  uint64_t tag;
  uint32_t state; /* 0 scheduled, 1 started, 2 completed, 3 failed */
  int32_t waiting_for; /* peer a started operation last waited on, -1 none */
  int64_t submitted_us, started_us, completed_us; /* CLOCK_REALTIME, 0 not yet */
  uint64_t bytes_sent, bytes_received;
  int64_t blocked_send_us, blocked_receive_us, blocked_ticket_us, reduce_us;
} mccl_record;
/* Newest `capacity` records, oldest first; returns how many were written. */
MCCL_API uint32_t mccl_comm_get_records(mccl_comm*, mccl_record* out, uint32_t capacity);

typedef struct mccl_peer_state {
  int32_t peer;
  int32_t connected;        /* a control link is up */
  int64_t silent_us;        /* since its last sign of life */
  uint64_t issued;          /* its newest sequence number, as last heard */
  uint64_t completed;
  uint32_t collective;      /* what it is in, 255 nothing */
  uint32_t reserved;
} mccl_peer_state;
MCCL_API int mccl_comm_get_peer(mccl_comm*, int32_t peer, mccl_peer_state*);

/* ---- kernels (the engine's own, for tests and the doctor) -------------- */

/* dst[i] = a[i] (+) b[i]; MCCL_INVALID when the pair is unsupported. dst may alias a or b. */
MCCL_API int mccl_reduce(uint32_t dtype, uint32_t redop, void* dst, const void* a, const void* b,
                         size_t n);
MCCL_API int mccl_reduce_supported(uint32_t dtype, uint32_t redop);
MCCL_API int mccl_convert(uint32_t dst_dtype, void* dst, uint32_t src_dtype, const void* src,
                          size_t n);
/* AVG's division by world (truncating for integers). */
MCCL_API int mccl_divide(uint32_t dtype, void* dst, const void* src, size_t n, uint32_t divisor);
MCCL_API uint32_t mccl_crc32c(uint32_t crc, const void* data, size_t n);
/* "generic", "avx2", "avx512", "neon"; force=NULL reads, otherwise selects (tests). */
MCCL_API const char* mccl_kernel_isa(const char* force);

MCCL_API int mccl_abi_version(void);
MCCL_API const char* mccl_build_info(void);

#ifdef __cplusplus
}
#endif
#endif /* MCCL_H */
