/* The CUDA runtime apart from memory: devices, streams, events, launches that do nothing. */
#define _GNU_SOURCE
#include "card.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static __thread cudaError_t last_error = cudaSuccess;

cudaError_t hollow_fail(cudaError_t error) {
    last_error = error;
    return error;
}

cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void) {
    return last_error;
}

const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return "no error";
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorNotReady: return "device not ready";
        case cudaErrorNoDevice: return "no CUDA-capable device is detected";
        case cudaErrorInvalidDevice: return "invalid device ordinal";
        case cudaErrorInvalidConfiguration: return "invalid configuration argument";
        default: return "error of the hollow card";
    }
}

const char *cudaGetErrorName(cudaError_t error) {
    return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorHollowCard";
}

/* ---- devices ---- */

cudaError_t cudaGetDeviceCount(int *devices) {
    *devices = visible_devices();
    return *devices ? cudaSuccess : hollow_fail(cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int *device) {
    *device = current_device();
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= visible_devices()) return hollow_fail(cudaErrorInvalidDevice);
    select_device(device);
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
    count(&counters.waits);
    wait_until(queue_end_ns());
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *lowest, int *highest) {
    *lowest = 0;
    *highest = -5;
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can_access, int device, int peer) {
    (void)device;
    (void)peer;
    *can_access = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device) {
    write_bus_id(text, length, device);
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = CUDA_VERSION_REPORTED;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDA_VERSION_REPORTED;
    return cudaSuccess;
}

/* Figures of an H200: cudaGetDeviceProperties as published for compute capability 9.0. */
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
    memset(properties, 0, sizeof *properties);
    snprintf(properties->name, sizeof properties->name, "%s", device_name());
    write_uuid(properties->uuid.bytes, device);
    properties->totalGlobalMem = memory_bytes();
    properties->major = 9;
    properties->minor = 0;
    properties->multiProcessorCount = 132;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    properties->maxThreadsDim[0] = 1024;
    properties->maxThreadsDim[1] = 1024;
    properties->maxThreadsDim[2] = 64;
    properties->maxGridSize[0] = 2147483647;
    properties->maxGridSize[1] = 65535;
    properties->maxGridSize[2] = 65535;
    properties->sharedMemPerBlock = 49152;
    properties->sharedMemPerBlockOptin = 232448;
    properties->sharedMemPerMultiprocessor = 233472;
    properties->reservedSharedMemPerBlock = 1024;
    properties->regsPerBlock = 65536;
    properties->regsPerMultiprocessor = 65536;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->maxBlocksPerMultiProcessor = 32;
    properties->l2CacheSize = 60 * (int)MIB;
    properties->memoryBusWidth = 6144;
    properties->totalConstMem = 65536;
    properties->textureAlignment = 512;
    properties->pciBusID = 0x41 + device;
    properties->concurrentKernels = 1;
    properties->asyncEngineCount = 3;
    properties->unifiedAddressing = 1;
    properties->managedMemory = 1;
    properties->canMapHostMemory = 1;
    properties->ECCEnabled = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    struct cudaDeviceProp properties;
    cudaGetDeviceProperties(&properties, device);
    switch (attribute) {
        case cudaDevAttrMaxThreadsPerBlock: *value = properties.maxThreadsPerBlock; break;
        case cudaDevAttrMaxBlockDimX: *value = properties.maxThreadsDim[0]; break;
        case cudaDevAttrMaxBlockDimY: *value = properties.maxThreadsDim[1]; break;
        case cudaDevAttrMaxBlockDimZ: *value = properties.maxThreadsDim[2]; break;
        case cudaDevAttrMaxGridDimX: *value = properties.maxGridSize[0]; break;
        case cudaDevAttrMaxGridDimY: *value = properties.maxGridSize[1]; break;
        case cudaDevAttrMaxGridDimZ: *value = properties.maxGridSize[2]; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *value = 49152; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 232448; break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 233472; break;
        case cudaDevAttrReservedSharedMemoryPerBlock: *value = 1024; break;
        case cudaDevAttrWarpSize: *value = properties.warpSize; break;
        case cudaDevAttrMaxRegistersPerBlock: *value = properties.regsPerBlock; break;
        case cudaDevAttrMaxRegistersPerMultiprocessor: *value = properties.regsPerMultiprocessor; break;
        case cudaDevAttrMultiProcessorCount: *value = properties.multiProcessorCount; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
        case cudaDevAttrMaxBlocksPerMultiprocessor: *value = 32; break;
        case cudaDevAttrComputeCapabilityMajor: *value = properties.major; break;
        case cudaDevAttrComputeCapabilityMinor: *value = properties.minor; break;
        case cudaDevAttrL2CacheSize: *value = properties.l2CacheSize; break;
        case cudaDevAttrClockRate: *value = 1980000; break; /* kHz */
        case cudaDevAttrConcurrentKernels: *value = 1; break;
        case cudaDevAttrUnifiedAddressing: *value = 1; break;
        case cudaDevAttrCooperativeLaunch: *value = 1; break;
        default: *value = 0;
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
    (void)device;
    *pool = (cudaMemPool_t)0x10;
    return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
    (void)pool;
    (void)attribute;
    memset(value, 0, sizeof(uint64_t));
    return cudaSuccess;
}

/* ---- streams and events: all streams of a device share one queue ---- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    static uintptr_t next_handle = 0x1000;
    (void)flags;
    (void)priority;
    *stream = (cudaStream_t)__atomic_add_fetch(&next_handle, 16, __ATOMIC_RELAXED);
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    return cudaStreamCreateWithPriority(stream, 0, 0);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    (void)stream;
    return cudaDeviceSynchronize();
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    (void)stream;
    return queue_end_ns() <= now_ns() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    (void)stream;
    *priority = 0;
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    (void)stream;
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **dependencies,
                                     const cudaGraphEdgeData **edges, size_t *num_dependencies) {
    (void)stream;
    (void)graph;
    (void)dependencies;
    (void)edges;
    *status = cudaStreamCaptureStatusNone;
    if (id) *id = 0;
    if (num_dependencies) *num_dependencies = 0;
    return cudaSuccess;
}

struct event {
    uint64_t reached_ns;
};

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    (void)flags;
    *event = (cudaEvent_t)calloc(1, sizeof(struct event));
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) {
    return cudaEventCreateWithFlags(event, 0);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    (void)stream;
    ((struct event *)event)->reached_ns = queue_end_ns();
    return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    (void)flags;
    return cudaEventRecord(event, stream);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    return ((struct event *)event)->reached_ns <= now_ns() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    count(&counters.waits);
    wait_until(((struct event *)event)->reached_ns);
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
    uint64_t start_ns = ((struct event *)start)->reached_ns;
    uint64_t end_ns = ((struct event *)end)->reached_ns;
    if (end_ns > now_ns()) return hollow_fail(cudaErrorNotReady);
    *milliseconds = (float)((double)(int64_t)(end_ns - start_ns) / 1e6);
    return cudaSuccess;
}

/* ---- launches ---- */

/* What the compiler's launch code keeps between <<<...>>> and cudaLaunchKernel. */
static __thread struct {
    dim3 grid;
    dim3 block;
    size_t shared_bytes;
    void *stream;
} configuration;

void **__cudaRegisterFatBinary(void *binary) {
    static void *handle[2];
    (void)binary;
    return handle;
}

char __cudaInitModule(void **handle) {
    (void)handle;
    return 1;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, void *stream) {
    configuration.grid = grid;
    configuration.block = block;
    configuration.shared_bytes = shared_bytes;
    configuration.stream = stream;
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream) {
    *grid = configuration.grid;
    *block = configuration.block;
    *shared_bytes = configuration.shared_bytes;
    *(void **)stream = configuration.stream;
    return cudaSuccess;
}

static cudaError_t launch(void) {
    count(&counters.launches);
    queue_operation();
    return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments,
                             size_t shared_bytes, cudaStream_t stream) {
    (void)function;
    (void)arguments;
    (void)shared_bytes;
    (void)stream;
    size_t threads = (size_t)block.x * block.y * block.z;
    int is_empty = !grid.x || !grid.y || !grid.z || !threads;
    if (is_empty || threads > 1024 || grid.y > 65535 || grid.z > 65535) {
        return hollow_fail(cudaErrorInvalidConfiguration);
    }
    return launch();
}

cudaError_t __cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments,
                               size_t shared_bytes, cudaStream_t stream) {
    return cudaLaunchKernel(function, grid, block, arguments, shared_bytes, stream);
}

cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block,
                                        void **arguments, size_t shared_bytes, cudaStream_t stream) {
    return cudaLaunchKernel(function, grid, block, arguments, shared_bytes, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function,
                                void **arguments) {
    return cudaLaunchKernel(function, config->gridDim, config->blockDim, arguments,
                            config->dynamicSmemBytes, config->stream);
}

cudaError_t __cudaGetKernel(void **kernel, const void *function) {
    *kernel = (void *)function;
    return cudaSuccess;
}

cudaError_t cudaGetFuncBySymbol(cudaFunction_t *kernel, const void *function) {
    *kernel = (cudaFunction_t)function;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function) {
    (void)function;
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = 1024;
    attributes->numRegs = 32;
    attributes->ptxVersion = 90;
    attributes->binaryVersion = 90;
    attributes->maxDynamicSharedSizeBytes = 232448;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function,
                                                          int block_size, size_t shared_bytes) {
    (void)function;
    (void)block_size;
    (void)shared_bytes;
    *blocks = 2;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int *blocks, const void *function, int block_size, size_t shared_bytes, unsigned flags) {
    (void)flags;
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, block_size, shared_bytes);
}

cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, const void *function,
                                           const cudaLaunchConfig_t *config) {
    (void)function;
    (void)config;
    *clusters = 66;
    return cudaSuccess;
}

cudaError_t cudaGetSymbolAddress(void **address, const void *symbol) {
    static char device_variables[1 << 16];
    (void)symbol;
    *address = device_variables;
    return cudaSuccess;
}

/* ---- the driver's functions by name ---- */

static int do_nothing(void) {
    return 0;
}

/* Newer versions of a function carry a suffix that callers leave out. */
static void *driver_function(const char *name) {
    char versioned[128];
    snprintf(versioned, sizeof versioned, "%s_v2", name);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    void *function = driver ? dlsym(driver, versioned) : NULL;
    if (driver && !function) function = dlsym(driver, name);
    return function ? function : (void *)do_nothing;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result) {
    (void)version;
    (void)flags;
    *function = driver_function(name);
    if (result) *result = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *result) {
    return cudaGetDriverEntryPointByVersion(name, function, 0, flags, result);
}
