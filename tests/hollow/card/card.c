/* Settings from the environment, device time, and counters. */
#include "card.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct counters counters;

static __thread int selected_device = 0;
static uint64_t device_queue_end_ns[MAX_DEVICES];

void count(uint64_t *counter) {
    __atomic_add_fetch(counter, 1, __ATOMIC_RELAXED);
}

void hollow_read_counters(struct counters *copy) {
    *copy = counters;
}

void hollow_reset_counters(void) {
    memset(&counters, 0, sizeof counters);
}

long setting(const char *name, long otherwise) {
    const char *value = getenv(name);
    return value ? atol(value) : otherwise;
}

const char *device_name(void) {
    const char *value = getenv("HOLLOW_NAME");
    return value ? value : "NVIDIA H200";
}

size_t memory_bytes(void) {
    return (size_t)setting("HOLLOW_MEMORY_MIB", 143771) * MIB;
}

int all_devices(void) {
    int devices = (int)setting("HOLLOW_DEVICES", 1);
    return devices < MAX_DEVICES ? devices : MAX_DEVICES;
}

/* Counts the entries of CUDA_VISIBLE_DEVICES; their order is not followed. */
int visible_devices(void) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    if (!list) return all_devices();
    if (!*list) return 0;
    int entries = 1;
    for (const char *character = list; *character; character++) {
        if (*character == ',') entries++;
    }
    return entries < all_devices() ? entries : all_devices();
}

void write_bus_id(char *text, int length, int device) {
    snprintf(text, (size_t)length, "0000:%02x:00.0", 0x41 + device);
}

void write_uuid(char *sixteen_bytes, int device) {
    memcpy(sixteen_bytes, "hollow-card-0000", 16);
    sixteen_bytes[15] = (char)('a' + device);
}

int current_device(void) {
    return selected_device;
}

void select_device(int device) {
    selected_device = device;
}

uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t queue_end_ns(void) {
    uint64_t now = now_ns();
    uint64_t end = device_queue_end_ns[selected_device];
    return end > now ? end : now;
}

void queue_operation(void) {
    static long operation_ns = -1;
    if (operation_ns < 0) operation_ns = setting("HOLLOW_OPERATION_NS", 0);
    if (operation_ns > 0) device_queue_end_ns[selected_device] = queue_end_ns() + (uint64_t)operation_ns;
}

void wait_until(uint64_t moment_ns) {
    for (uint64_t now = now_ns(); now < moment_ns; now = now_ns()) {
        uint64_t rest = moment_ns - now;
        struct timespec pause = {(time_t)(rest / 1000000000u), (long)(rest % 1000000000u)};
        nanosleep(&pause, NULL);
    }
}
