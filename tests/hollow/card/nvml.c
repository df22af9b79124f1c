/* NVIDIA's management library, as pynvml calls it for trainmark and torch. */
#include "card.h"

#include <stdio.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3 };

/* Handles of cards are addresses in this array. */
static char cards[MAX_DEVICES];

static int number_of(void *card) {
    return (int)((char *)card - cards);
}

static int set_card(void **card, int number) {
    if (number < 0 || number >= all_devices()) return INVALID_ARGUMENT;
    *card = &cards[number];
    return SUCCESS;
}

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlInitWithFlags(unsigned flags) { return flags ? NOT_SUPPORTED : SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int error) {
    return error == NOT_SUPPORTED ? "Not Supported" : "error of the hollow card";
}

int nvmlSystemGetNVMLVersion(char *text, unsigned length) {
    snprintf(text, length, "13.580.0");
    return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *text, unsigned length) {
    snprintf(text, length, "580.0");
    return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = CUDA_VERSION_REPORTED;
    return SUCCESS;
}

/* ---- cards ---- */

int nvmlDeviceGetCount_v2(unsigned *devices) {
    *devices = (unsigned)all_devices();
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **card) {
    return set_card(card, (int)index);
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **card) {
    unsigned domain, bus, slot;
    if (sscanf(bus_id, "%x:%x:%x", &domain, &bus, &slot) != 3) return INVALID_ARGUMENT;
    return set_card(card, (int)bus - 0x41);
}

int nvmlDeviceGetUUID(void *card, char *text, unsigned length) {
    unsigned char bytes[16];
    write_uuid((char *)bytes, number_of(card));
    char digits[33];
    for (int place = 0; place < 16; place++) snprintf(digits + 2 * place, 3, "%02x", bytes[place]);
    snprintf(text, length, "GPU-%.8s-%.4s-%.4s-%.4s-%.12s", digits, digits + 8, digits + 12,
             digits + 16, digits + 20);
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **card) {
    for (int number = 0; number < all_devices(); number++) {
        char text[64];
        nvmlDeviceGetUUID(&cards[number], text, sizeof text);
        if (!strcmp(text, uuid)) return set_card(card, number);
    }
    return INVALID_ARGUMENT;
}

int nvmlDeviceGetIndex(void *card, unsigned *index) {
    *index = (unsigned)number_of(card);
    return SUCCESS;
}

int nvmlDeviceGetName(void *card, char *text, unsigned length) {
    (void)card;
    snprintf(text, length, "%s", device_name());
    return SUCCESS;
}

/* ---- readings: constants, so that a test can tell that they came through ---- */

struct memory {
    unsigned long long total, free, used;
};

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

int nvmlDeviceGetMemoryInfo(void *card, struct memory *memory) {
    memory->total = memory_bytes();
    memory->used = CONTEXT_BYTES + used_bytes(number_of(card));
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(void *card, struct memory_v2 *memory) {
    memory->total = memory_bytes();
    memory->reserved = CONTEXT_BYTES;
    memory->used = used_bytes(number_of(card));
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *card, unsigned percent[2]) {
    (void)card;
    percent[0] = 0;
    percent[1] = 0;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(void *card, int sensor, unsigned *celsius) {
    (void)card;
    (void)sensor;
    *celsius = 45;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(void *card, unsigned *milliwatts) {
    (void)card;
    *milliwatts = 650000;
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(void *card, int kind, unsigned *megahertz) {
    (void)card;
    (void)kind;
    *megahertz = 1755;
    return SUCCESS;
}

/* In millijoules: 650 W since the machine's start. */
int nvmlDeviceGetTotalEnergyConsumption(void *card, unsigned long long *millijoules) {
    (void)card;
    *millijoules = now_ns() / 1000000 * 650;
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksEventReasons(void *card, unsigned long long *reasons) {
    (void)card;
    *reasons = 0;
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *card, unsigned *processes, void *list) {
    (void)card;
    (void)list;
    *processes = 0;
    return SUCCESS;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *card, unsigned *processes, void *list) {
    return nvmlDeviceGetComputeRunningProcesses_v3(card, processes, list);
}

int nvmlDeviceGetComputeRunningProcesses(void *card, unsigned *processes, void *list) {
    return nvmlDeviceGetComputeRunningProcesses_v3(card, processes, list);
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void *card, unsigned link, int *type) {
    (void)card;
    (void)link;
    (void)type;
    return NOT_SUPPORTED;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *card, unsigned link, void *info) {
    (void)card;
    (void)link;
    (void)info;
    return NOT_SUPPORTED;
}

int nvmlDeviceGetGpuFabricInfoV(void *card, void *info) {
    (void)card;
    (void)info;
    return NOT_SUPPORTED;
}
