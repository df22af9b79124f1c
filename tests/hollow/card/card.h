/* What the parts of the hollow card share: settings, device time, counters, memory in use. */
#ifndef HOLLOW_CARD_H
#define HOLLOW_CARD_H

#include <stddef.h>
#include <stdint.h>

#define MAX_DEVICES 16
#define MIB ((size_t)1 << 20)
#define CUDA_VERSION_REPORTED 13000

/* Memory that a context takes on a real H200 before the first tensor; 2026-11-28. */
#define CONTEXT_BYTES (530 * MIB)

/* The order is that of COUNTERS in hollow_card.py. */
struct counters {
    uint64_t launches;       /* kernels, torch's and Triton's */
    uint64_t matmuls;        /* calls of cuBLAS and cuBLASLt */
    uint64_t cudnn_runs;     /* executed cuDNN plans */
    uint64_t collectives;    /* calls of NCCL that move data */
    uint64_t copies_in;      /* host to device */
    uint64_t copies_out;     /* device to host */
    uint64_t copies_within;  /* device to device */
    uint64_t memsets;
    uint64_t waits;          /* calls in which the host waits for the device */
    uint64_t allocations;    /* cudaMalloc */
};

extern struct counters counters;

void count(uint64_t *counter);

long setting(const char *name, long otherwise);
const char *device_name(void);
size_t memory_bytes(void);
int all_devices(void);
int visible_devices(void);
void write_bus_id(char *text, int length, int device);
void write_uuid(char *sixteen_bytes, int device);

int current_device(void);
void select_device(int device);
size_t used_bytes(int device);

uint64_t now_ns(void);
void queue_operation(void);         /* adds HOLLOW_OPERATION_NS to what the device has to do */
uint64_t queue_end_ns(void);        /* when the device has done all that is queued */
void wait_until(uint64_t moment_ns);

#endif
