/* cuBLAS, cuBLASLt, cuDNN and NCCL: versions, handles, and calls that are counted.
 *
 * Their headers are not needed: only what a caller reads is declared, and the caller's further
 * arguments are ignored.
 */
#include "card.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#define SUCCESS 0

static int create_handle(void **handle) {
    *handle = calloc(1, 256);
    return SUCCESS;
}

static int count_matmul(void) {
    count(&counters.matmuls);
    queue_operation();
    return SUCCESS;
}

static int count_collective(void) {
    count(&counters.collectives);
    queue_operation();
    return SUCCESS;
}

/* ---- cuBLAS ---- */

int cublasCreate_v2(void **handle) { return create_handle(handle); }

int cublasDestroy_v2(void *handle) {
    free(handle);
    return SUCCESS;
}

int cublasGetProperty(int property, int *value) {
    int is_major = property == 0;
    *value = is_major ? 13 : 0;
    return SUCCESS;
}

int cublasGetVersion_v2(void *handle, int *version) {
    (void)handle;
    *version = 130000;
    return SUCCESS;
}

int cublasGetMathMode(void *handle, int *mode) {
    (void)handle;
    *mode = 0;
    return SUCCESS;
}

int cublasGetPointerMode_v2(void *handle, int *mode) {
    (void)handle;
    *mode = 0;
    return SUCCESS;
}

int cublasSgemm_v2(void) { return count_matmul(); }
int cublasDgemm_v2(void) { return count_matmul(); }
int cublasGemmEx(void) { return count_matmul(); }
int cublasSgemmEx(void) { return count_matmul(); }
int cublasGemmBatchedEx(void) { return count_matmul(); }
int cublasGemmStridedBatchedEx(void) { return count_matmul(); }
int cublasSgemmStridedBatched(void) { return count_matmul(); }
int cublasDgemmStridedBatched(void) { return count_matmul(); }

/* ---- cuBLASLt ---- */

/* cublasLtMatmulHeuristicResult_t of cublasLt.h */
struct heuristic {
    uint64_t algorithm[8];
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
};

int cublasLtCreate(void **handle) { return create_handle(handle); }
size_t cublasLtGetVersion(void) { return 130000; }

int cublasLtMatmulDescCreate(void **description, int compute, int scale) {
    (void)compute;
    (void)scale;
    return create_handle(description);
}

int cublasLtMatrixLayoutCreate(void **layout, int type, uint64_t rows, uint64_t columns,
                               int64_t stride) {
    (void)type;
    (void)rows;
    (void)columns;
    (void)stride;
    return create_handle(layout);
}

int cublasLtMatmulPreferenceCreate(void **preference) { return create_handle(preference); }

int cublasLtMatmulDescDestroy(void *description) {
    free(description);
    return SUCCESS;
}

int cublasLtMatrixLayoutDestroy(void *layout) {
    free(layout);
    return SUCCESS;
}

int cublasLtMatmulPreferenceDestroy(void *preference) {
    free(preference);
    return SUCCESS;
}

/* Returns one algorithm without a workspace. */
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c,
                                   void *d, void *preference, int wanted,
                                   struct heuristic *results, int *num_results) {
    (void)handle;
    (void)operation;
    (void)a;
    (void)b;
    (void)c;
    (void)d;
    (void)preference;
    (void)wanted;
    memset(results, 0, sizeof *results);
    results->waves = 1;
    *num_results = 1;
    return SUCCESS;
}

int cublasLtMatmul(void) { return count_matmul(); }

/* ---- cuDNN: descriptors that accept every attribute ---- */

static long cudnn_version(void) { return setting("HOLLOW_CUDNN_VERSION", CUDNN_VERSION_REPORTED); }

size_t cudnnGetVersion(void) { return (size_t)cudnn_version(); }
size_t cudnnGetCudartVersion(void) { return CUDA_VERSION_REPORTED; }
int cudnnCreate(void **handle) { return create_handle(handle); }
const char *cudnnGetErrorString(int status) { return status ? "error of the hollow card" : "success"; }

int cudnnGetProperty(int property, int *value) {
    long version = cudnn_version();
    long parts[] = {version / 10000, version / 100 % 100, version % 100};
    *value = (int)parts[property];
    return SUCCESS;
}

int cudnnBackendCreateDescriptor(int type, void **descriptor) {
    (void)type;
    return create_handle(descriptor);
}

/* Returns the size of an element by its cudnnBackendAttributeType_t; 0 for a descriptor. */
static size_t element_bytes(int type) {
    enum { HANDLE = 0, BOOLEAN = 2, INT64 = 3, DOUBLE = 5, POINTER = 6, DESCRIPTOR = 15 };
    switch (type) {
        case HANDLE:
        case INT64:
        case DOUBLE:
        case POINTER: return 8;
        case BOOLEAN: return 1;
        case DESCRIPTOR: return 0;
        default: return 4; /* enumerations and floats */
    }
}

/* Answers one zero: no workspace is needed. A list of descriptors has one, the caller's. */
int cudnnBackendGetAttribute(void *descriptor, int attribute, int type, int64_t wanted,
                             int64_t *num_elements, void *elements) {
    (void)descriptor;
    (void)attribute;
    if (num_elements) *num_elements = 1;
    if (elements && wanted > 0) memset(elements, 0, element_bytes(type));
    return SUCCESS;
}

int cudnnBackendExecute(void *handle, void *plan, void *pack) {
    (void)handle;
    (void)plan;
    (void)pack;
    count(&counters.cudnn_runs);
    queue_operation();
    return SUCCESS;
}

/* ---- NCCL ---- */

#define UNIQUE_ID_BYTES 128

struct unique_id {
    char bytes[UNIQUE_ID_BYTES];
};

int ncclGetVersion(int *version) {
    *version = 22907; /* 2.29.7 */
    return SUCCESS;
}

const char *ncclGetErrorString(int status) { return status ? "error of the hollow card" : "no error"; }

const char *ncclGetLastError(void *communicator) {
    (void)communicator;
    return "";
}

int ncclGetUniqueId(struct unique_id *id) {
    memset(id, 7, sizeof *id);
    return SUCCESS;
}

/* The memory of a communicator begins with its number of ranks and this one's number. */
static int create_communicator(void **communicator, int ranks, int rank) {
    create_handle(communicator);
    int *numbers = *communicator;
    numbers[0] = ranks;
    numbers[1] = rank;
    return SUCCESS;
}

int ncclCommInitRank(void **communicator, int ranks, struct unique_id id, int rank) {
    (void)id;
    return create_communicator(communicator, ranks, rank);
}

int ncclCommCount(void *communicator, int *ranks) {
    *ranks = ((int *)communicator)[0];
    return SUCCESS;
}

int ncclCommUserRank(void *communicator, int *rank) {
    *rank = ((int *)communicator)[1];
    return SUCCESS;
}

int ncclCommInitRankConfig(void **communicator, int ranks, struct unique_id id, int rank,
                           void *configuration) {
    (void)configuration;
    return ncclCommInitRank(communicator, ranks, id, rank);
}

int ncclCommInitRankScalable(void **communicator, int ranks, int rank, int num_ids, void *ids,
                             void *configuration) {
    (void)num_ids;
    (void)ids;
    (void)configuration;
    return create_communicator(communicator, ranks, rank);
}

int ncclCommSplit(void *communicator, int color, int key, void **part, void *configuration) {
    (void)communicator;
    (void)color;
    (void)key;
    (void)configuration;
    return create_handle(part);
}

int ncclCommGetAsyncError(void *communicator, int *error) {
    (void)communicator;
    *error = 0;
    return SUCCESS;
}

int ncclMemAlloc(void **address, size_t size) { return cudaMalloc(address, size); }

int ncclAllReduce(void) { return count_collective(); }
int ncclBroadcast(void) { return count_collective(); }
int ncclBcast(void) { return count_collective(); }
int ncclAllGather(void) { return count_collective(); }
int ncclReduceScatter(void) { return count_collective(); }
int ncclReduce(void) { return count_collective(); }
int ncclSend(void) { return count_collective(); }
int ncclRecv(void) { return count_collective(); }
