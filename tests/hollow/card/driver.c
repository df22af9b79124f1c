/* The CUDA driver, as trainmark, torch and Triton call it. */
#include "card.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

static const CUcontext CONTEXT = (CUcontext)0x20;
static const CUmodule MODULE = (CUmodule)0x40;

CUresult cuInit(unsigned flags) {
    (void)flags;
    return visible_devices() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

CUresult cuDriverGetVersion(int *version) {
    *version = CUDA_VERSION_REPORTED;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text) {
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "error of the hollow card";
    return CUDA_SUCCESS;
}

/* ---- devices ---- */

CUresult cuDeviceGetCount(int *devices) {
    *devices = visible_devices();
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *text, int length, CUdevice device) {
    (void)device;
    snprintf(text, (size_t)length, "%s", device_name());
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device) {
    write_bus_id(text, length, device);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    write_uuid(uuid->bytes, device);
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t *size, CUdevice device) {
    (void)device;
    *size = memory_bytes();
    return CUDA_SUCCESS;
}

/* The attributes have the runtime's numbers. */
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    cudaDeviceGetAttribute(value, (enum cudaDeviceAttr)attribute, device);
    return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
    (void)device;
    *major = 9;
    *minor = 0;
    return CUDA_SUCCESS;
}

/* ---- contexts and streams ---- */

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    *flags = 0;
    *active = device == current_device();
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    (void)device;
    *context = CONTEXT;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = CONTEXT;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device) {
    *device = current_device();
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context) {
    (void)stream;
    *context = CONTEXT;
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    (void)stream;
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

/* Triton asks for the address on the device alone. */
CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address) {
    (void)attribute;
    memcpy(value, &address, sizeof address);
    return CUDA_SUCCESS;
}

/* ---- compiled kernels ---- */

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    (void)image;
    *module = MODULE;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    (void)module;
    (void)name;
    *function = (CUfunction)0x50;
    return CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit_options,
                           void **jit_values, unsigned num_jit_options,
                           CUlibraryOption *options, void **values, unsigned num_options) {
    (void)code;
    (void)jit_options;
    (void)jit_values;
    (void)num_jit_options;
    (void)options;
    (void)values;
    (void)num_options;
    *library = (CUlibrary)MODULE;
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    (void)library;
    (void)name;
    *kernel = (CUkernel)0x50;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    (void)function;
    switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
        case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 40; break;
        default: *value = 0;
    }
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function,
                                      const CUlaunchConfig *config) {
    (void)function;
    (void)config;
    *clusters = 66;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function,
                                                     int block_size, size_t shared_bytes) {
    (void)function;
    (void)block_size;
    (void)shared_bytes;
    *blocks = 2;
    return CUDA_SUCCESS;
}

static CUresult launch(void) {
    count(&counters.launches);
    queue_operation();
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments,
                          void **extra) {
    (void)config;
    (void)function;
    (void)arguments;
    (void)extra;
    return launch();
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        CUstream stream, void **arguments, void **extra) {
    (void)function;
    (void)grid_x;
    (void)grid_y;
    (void)grid_z;
    (void)block_x;
    (void)block_y;
    (void)block_z;
    (void)shared_bytes;
    (void)stream;
    (void)arguments;
    (void)extra;
    return launch();
}
