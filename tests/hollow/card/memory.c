/* Memory of the runtime: device memory is address space that holds zeros until it is written. */
#define _GNU_SOURCE
#include "card.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define GRANULE (2 * MIB) /* of cudaMalloc: size and alignment */

enum kind { HOST, DEVICE };

struct block {
    char *start;
    size_t size;
    enum kind kind;
    int device;
};

/* Sorted by address. */
static struct block *blocks;
static int num_blocks;
static int capacity;
static size_t used[MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

size_t used_bytes(int device) {
    return used[device];
}

size_t hollow_used_bytes(int device) {
    return used[device];
}

/* Returns the place of the block that holds an address, or -1. The caller holds the lock. */
static int find_block(const void *address) {
    int low = 0;
    int high = num_blocks - 1;
    while (low <= high) {
        int middle = (low + high) / 2;
        struct block *block = &blocks[middle];
        if ((const char *)address < block->start) {
            high = middle - 1;
        } else if ((const char *)address >= block->start + block->size) {
            low = middle + 1;
        } else {
            return middle;
        }
    }
    return -1;
}

static void add_block(char *start, size_t size, enum kind kind) {
    if (num_blocks == capacity) {
        capacity = capacity ? 2 * capacity : 256;
        blocks = realloc(blocks, (size_t)capacity * sizeof *blocks);
    }
    int place = num_blocks;
    while (place > 0 && blocks[place - 1].start > start) {
        blocks[place] = blocks[place - 1];
        place--;
    }
    blocks[place] = (struct block){start, size, kind, current_device()};
    num_blocks++;
}

static void remove_block(int place) {
    num_blocks--;
    memmove(blocks + place, blocks + place + 1, (size_t)(num_blocks - place) * sizeof *blocks);
}

/* Returns address space aligned to GRANULE, or NULL. */
static char *reserve(size_t size) {
    size_t mapped = size + GRANULE;
    char *start = mmap(NULL, mapped, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return NULL;
    char *aligned = (char *)(((uintptr_t)start + GRANULE - 1) / GRANULE * GRANULE);
    size_t before = (size_t)(aligned - start);
    if (before) munmap(start, before);
    munmap(aligned + size, GRANULE - before);
    return aligned;
}

cudaError_t hollow_fail(cudaError_t error);

static int has_room(size_t size) {
    size_t hidden = (size_t)setting("HOLLOW_HIDDEN_MIB", 0) * MIB;
    return used[current_device()] + size + CONTEXT_BYTES + hidden <= memory_bytes();
}

cudaError_t cudaMalloc(void **address, size_t size) {
    size_t rounded = (size + GRANULE - 1) / GRANULE * GRANULE;
    int device = current_device();
    char *start = NULL;
    pthread_mutex_lock(&lock);
    if (has_room(rounded)) start = reserve(rounded);
    if (start) {
        add_block(start, rounded, DEVICE);
        used[device] += rounded;
    }
    pthread_mutex_unlock(&lock);
    if (!start) return hollow_fail(cudaErrorMemoryAllocation);
    count(&counters.allocations);
    *address = start;
    return cudaSuccess;
}

cudaError_t cudaFree(void *address) {
    if (!address) return cudaSuccess;
    count(&counters.waits);
    pthread_mutex_lock(&lock);
    int place = find_block(address);
    if (place >= 0) {
        used[blocks[place].device] -= blocks[place].size;
        munmap(blocks[place].start, blocks[place].size);
        remove_block(place);
    }
    pthread_mutex_unlock(&lock);
    return place >= 0 ? cudaSuccess : hollow_fail(cudaErrorInvalidValue);
}

cudaError_t cudaMallocAsync(void **address, size_t size, cudaStream_t stream) {
    (void)stream;
    return cudaMalloc(address, size);
}

cudaError_t cudaFreeAsync(void *address, cudaStream_t stream) {
    (void)stream;
    return cudaFree(address);
}

cudaError_t cudaHostAlloc(void **address, size_t size, unsigned flags) {
    (void)flags;
    size_t at_least_one = size ? size : 1;
    if (posix_memalign(address, 4096, at_least_one)) return hollow_fail(cudaErrorMemoryAllocation);
    pthread_mutex_lock(&lock);
    add_block(*address, at_least_one, HOST);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **address, size_t size) {
    return cudaHostAlloc(address, size, 0);
}

cudaError_t cudaFreeHost(void *address) {
    pthread_mutex_lock(&lock);
    int place = find_block(address);
    if (place >= 0) remove_block(place);
    pthread_mutex_unlock(&lock);
    free(address);
    return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **on_device, void *on_host, unsigned flags) {
    (void)flags;
    *on_device = on_host;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *address) {
    memset(attributes, 0, sizeof *attributes);
    pthread_mutex_lock(&lock);
    int place = find_block(address);
    if (place < 0) {
        attributes->type = cudaMemoryTypeUnregistered;
        attributes->device = -2; /* cudaInvalidDeviceId */
        attributes->hostPointer = (void *)address;
    } else {
        attributes->device = blocks[place].device;
        attributes->devicePointer = (void *)address;
        if (blocks[place].kind == HOST) {
            attributes->type = cudaMemoryTypeHost;
            attributes->hostPointer = (void *)address;
        } else {
            attributes->type = cudaMemoryTypeDevice;
        }
    }
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_size, size_t *total) {
    *total = memory_bytes();
    *free_size = *total - CONTEXT_BYTES - used[current_device()];
    return cudaSuccess;
}

static int is_on_device(const void *address) {
    pthread_mutex_lock(&lock);
    int place = find_block(address);
    int answer = place >= 0 && blocks[place].kind == DEVICE;
    pthread_mutex_unlock(&lock);
    return answer;
}

/* Large copies to the device are left out: they would fill the host's memory. */
static cudaError_t copy(void *target, const void *source, size_t size) {
    int to_device = is_on_device(target);
    int from_device = is_on_device(source);
    if (to_device && from_device) {
        count(&counters.copies_within);
    } else if (to_device) {
        count(&counters.copies_in);
    } else if (from_device) {
        count(&counters.copies_out);
    }
    queue_operation();
    size_t largest = (size_t)setting("HOLLOW_COPY_MIB", 16) * MIB;
    if (!to_device || size <= largest) memcpy(target, source, size);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t size,
                            enum cudaMemcpyKind kind, cudaStream_t stream) {
    (void)kind;
    (void)stream;
    return copy(target, source, size);
}

cudaError_t cudaMemcpy(void *target, const void *source, size_t size, enum cudaMemcpyKind kind) {
    (void)kind;
    count(&counters.waits);
    wait_until(queue_end_ns());
    return copy(target, source, size);
}

cudaError_t cudaMemcpyPeerAsync(void *target, int target_device, const void *source,
                                int source_device, size_t size, cudaStream_t stream) {
    (void)target_device;
    (void)source_device;
    (void)stream;
    return copy(target, source, size);
}

cudaError_t cudaMemsetAsync(void *target, int value, size_t size, cudaStream_t stream) {
    (void)stream;
    count(&counters.memsets);
    queue_operation();
    if (size <= MIB) memset(target, value, size);
    return cudaSuccess;
}

cudaError_t cudaMemset(void *target, int value, size_t size) {
    return cudaMemsetAsync(target, value, size, NULL);
}
