/* A libnvidia-ml.so.1 that errs, lies and hangs as the file named by SICK_DRIVER says.

   The file has lines such as "nvmlDeviceGetPowerUsage 15" (return this code), "nvmlInitWithFlags hang", or
   "lies": every number is one that cannot be. A function that no line names answers well. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int lies;

static int sick(const char *function) {
    char name[128], what[32];
    int code = 0;
    FILE *file = fopen(getenv("SICK_DRIVER"), "r");
    lies = 0;
    if (file == NULL) return 0;
    while (fscanf(file, "%127s %31s", name, what) == 2) {
        if (strcmp(name, "lies") == 0) lies = 1;
        if (strcmp(name, function) != 0) continue;
        if (strcmp(what, "hang") == 0) {
            fclose(file);
            for (;;) pause();
        }
        code = atoi(what);
    }
    fclose(file);
    return code;
}

#define ANSWER(value, lie) \
    int code = sick(__func__); \
    if (code == 0) *out = lies ? (lie) : (value); \
    return code

typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;

int nvmlInitWithFlags(unsigned flags) { return sick(__func__); }
int nvmlShutdown(void) { return sick(__func__); }
const char *nvmlErrorString(int code) { return "sick"; }
int nvmlDeviceGetCount_v2(unsigned *out) { ANSWER(1, 4294967295u); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    int code = sick(__func__);
    if (code == 0) *out = (void *)16;
    return code ? code : index ? 6 : 0;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **out) { ANSWER((void *)16, (void *)16); }
int nvmlDeviceGetUUID(void *device, char *out, unsigned length) {
    int code = sick(__func__);
    strncpy(out, lies ? "" : "GPU-16", length);
    return code;
}
int nvmlDeviceGetName(void *device, char *out, unsigned length) {
    int code = sick(__func__);
    strncpy(out, lies ? "\xff\xfe" : "Sick GPU", length);
    return code;
}
int nvmlDeviceGetUtilizationRates(void *device, utilization *out) {
    int code = sick(__func__);
    out->gpu = lies ? 4294967295u : 50;
    return code;
}
int nvmlDeviceGetMemoryInfo(void *device, memory *out) {
    int code = sick(__func__);
    out->total = lies ? UINT64_MAX : 1ull << 33;
    out->used = lies ? UINT64_MAX - 1 : 1ull << 32;
    return code;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2 *out) {
    int code = sick(__func__);
    out->total = lies ? UINT64_MAX : 1ull << 33;
    out->used = lies ? UINT64_MAX - 1 : 1ull << 32;
    return code;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *out) { ANSWER(300000, 4294967295u); }
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *out) { ANSWER(700000, 4294967295u); }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *out) { ANSWER(60, 4294967295u); }
int nvmlDeviceGetClockInfo(void *device, int clock, unsigned *out) { ANSWER(1980, 4294967295u); }
int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *out) { ANSWER(4, UINT64_MAX); }
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *later) {
    int code = sick(__func__);
    *now = *later = lies ? 4294967295u : 0;
    return code;
}
int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *out) { ANSWER(0, 4294967295u); }
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **out) { return sick(__func__), 6; }
