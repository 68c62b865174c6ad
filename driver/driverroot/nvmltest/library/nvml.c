// A libnvidia-ml.so.1 for machines without GPUs: it answers every call that the
// driver makes from a text, which is read anew for each call, so that a test can
// change its mind. It is not complete, and not fast.
//
// The text is the file $DRA_LAB_NVML, or else what the library was compiled
// with. Its lines:
//
//	driver VERSION          of the kernel module
//	cuda NUMBER             12080 is 12.8
//	init RETURN             what nvmlInit answers; 0 without this line
//	gpu INDEX KEY VALUE     INDEX counts from 0; the highest says how many there are
//	event NUMBER INDEX XID  an event that comes once; numbers increase
//
// Keys of a GPU: uuid, name, minor, bus, brand, architecture, capability (of CUDA,
// 90 is 9.0), total and used (bytes), temperature (degrees), power (milliwatts),
// lanes, mode (of compute), mig, recovery, pid (of one process), and answer: what
// all of its calls return, 15 for a GPU that is lost. "open" is what opening it
// returns.
//
// With OLD_DRIVER it has only what a driver of 2019 had.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#ifndef DESCRIPTION
#define DESCRIPTION ""
#endif

#define MAX_GPUS 64
#define MAX_TEXT 65536
#define ULL unsigned long long

// Handles point to these. In the header of go-nvml they are in a struct of their
// own, which is passed like the pointer that they are elsewhere.
static struct nvmlDevice_st {
    int index;
} gpus[MAX_GPUS];

static struct nvmlEventSet_st {
    ULL registered[MAX_GPUS];
    long delivered;
} sets[8];
static int used_sets;
static int inits;

static const char *text(void) {
    static __thread char buffer[MAX_TEXT];
    const char *path = getenv("DRA_LAB_NVML");
    if (!path)
        return DESCRIPTION;
    FILE *file = fopen(path, "r");
    if (!file)
        return "";
    size_t n = fread(buffer, 1, sizeof buffer - 1, file);
    fclose(file);
    buffer[n] = 0;
    return buffer;
}

// value copies what follows the words of key on its line; 0 if there is no such
// line.
static int value(const char *key, char *out, size_t size) {
    size_t length = strlen(key);
    for (const char *line = text(); *line;) {
        size_t n = strcspn(line, "\n");
        if (n > length && !strncmp(line, key, length) && line[length] == ' ') {
            size_t rest = n - length - 1;
            if (rest >= size)
                rest = size - 1;
            memcpy(out, line + length + 1, rest);
            out[rest] = 0;
            return 1;
        }
        line += n + (line[n] == '\n');
    }
    return 0;
}

static ULL number(const char *key, ULL otherwise) {
    char out[64];
    return value(key, out, sizeof out) ? strtoull(out, NULL, 0) : otherwise;
}

static int gpu_value(nvmlDevice_t d, const char *key, char *out, size_t size) {
    char full[64];
    snprintf(full, sizeof full, "gpu %d %s", d.handle->index, key);
    return value(full, out, size);
}

static ULL gpu_number(nvmlDevice_t d, const char *key, ULL otherwise) {
    char out[64];
    return gpu_value(d, key, out, sizeof out) ? strtoull(out, NULL, 0) : otherwise;
}

// BEGIN returns what every call on a device begins with.
#define BEGIN(d)                                         \
    if (!inits)                                          \
        return NVML_ERROR_UNINITIALIZED;                 \
    if (!(d).handle)                                          \
        return NVML_ERROR_INVALID_ARGUMENT;              \
    {                                                    \
        ULL answer = gpu_number((d), "answer", 0);       \
        if (answer)                                      \
            return (nvmlReturn_t)answer;                 \
    }

static nvmlReturn_t string(const char *from, char *to, unsigned int length) {
    if (strlen(from) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(to, from);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void) {
    ULL answer = number("init", 0);
    if (answer)
        return (nvmlReturn_t)answer;
    for (int i = 0; i < MAX_GPUS; i++)
        gpus[i].index = i;
    inits++;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlShutdown(void) {
    if (!inits)
        return NVML_ERROR_UNINITIALIZED;
    inits--;
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result) {
    switch (result) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "RM has detected an NVML/RM version mismatch.";
    default: return "Another error";
    }
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    char out[80] = "";
    value("driver", out, sizeof out);
    return string(out, version, length);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    *version = (int)number("cuda", 0);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    if (!inits)
        return NVML_ERROR_UNINITIALIZED;
    *count = 0;
    for (const char *line = text(); *line;) {
        unsigned int index;
        if (sscanf(line, "gpu %u ", &index) == 1 && index < MAX_GPUS && index >= *count)
            *count = index + 1;
        line += strcspn(line, "\n");
        line += *line == '\n';
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    unsigned int count;
    nvmlReturn_t ret = nvmlDeviceGetCount_v2(&count);
    if (ret)
        return ret;
    if (index >= count)
        return NVML_ERROR_INVALID_ARGUMENT;
    device->handle = &gpus[index];
    return (nvmlReturn_t)gpu_number(*device, "open", 0);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *uuid, unsigned int length) {
    char out[96] = "";
    BEGIN(d)
    gpu_value(d, "uuid", out, sizeof out);
    return string(out, uuid, length);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *name, unsigned int length) {
    char out[96] = "A GPU that is none";
    BEGIN(d)
    gpu_value(d, "name", out, sizeof out);
    return string(out, name, length);
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t d, unsigned int *minor) {
    BEGIN(d)
    *minor = (unsigned int)gpu_number(d, "minor", (ULL)d.handle->index);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t d, nvmlBrandType_t *brand) {
    BEGIN(d)
    *brand = (nvmlBrandType_t)gpu_number(d, "brand", NVML_BRAND_NVIDIA);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t d, int *major, int *minor) {
    BEGIN(d)
    ULL capability = gpu_number(d, "capability", 90);
    *major = (int)(capability / 10);
    *minor = (int)(capability % 10);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t *memory) {
    BEGIN(d)
    memory->total = gpu_number(d, "total", 80ULL << 30);
    memory->used = gpu_number(d, "used", 0);
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, nvmlPciInfo_t *pci) {
    BEGIN(d)
    memset(pci, 0, sizeof *pci);
    gpu_value(d, "bus", pci->busId, sizeof pci->busId);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t d, nvmlTemperatureSensors_t sensor, unsigned int *degrees) {
    (void)sensor;
    BEGIN(d)
    *degrees = (unsigned int)gpu_number(d, "temperature", 40);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t d, nvmlTemperatureThresholds_t which, unsigned int *degrees) {
    (void)which;
    BEGIN(d)
    *degrees = 90;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t d, unsigned int *milliwatts) {
    BEGIN(d)
    *milliwatts = (unsigned int)gpu_number(d, "power", 60000);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t d, unsigned int *lanes) {
    BEGIN(d)
    *lanes = (unsigned int)gpu_number(d, "lanes", 16);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t d, unsigned int *lanes) {
    BEGIN(d)
    *lanes = 16;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t d, nvmlMemoryErrorType_t kind, nvmlEccCounterType_t counter, ULL *errors) {
    (void)kind, (void)counter;
    BEGIN(d)
    *errors = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t d, int count, nvmlFieldValue_t *values) {
    BEGIN(d)
    for (int i = 0; i < count; i++) {
        if (values[i].fieldId != NVML_FI_DEV_GET_GPU_RECOVERY_ACTION) {
            values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
            continue;
        }
        values[i].nvmlReturn = NVML_SUCCESS;
        values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
        values[i].value.uiVal = (unsigned int)gpu_number(d, "recovery", 0);
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t d, nvmlComputeMode_t *mode) {
    BEGIN(d)
    *mode = (nvmlComputeMode_t)gpu_number(d, "mode", NVML_COMPUTEMODE_DEFAULT);
    return NVML_SUCCESS;
}

#ifdef OLD_DRIVER
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t d, unsigned int *count, nvmlProcessInfo_v1_t *infos) {
#else
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned int *count, nvmlProcessInfo_t *infos) {
#endif
    BEGIN(d)
    unsigned int room = *count, pid = (unsigned int)gpu_number(d, "pid", 0);
    *count = pid != 0;
    if (*count > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    if (pid) {
        memset(infos, 0, sizeof *infos);
        infos->pid = pid;
        infos->usedGpuMemory = gpu_number(d, "used", 0);
    }
    return NVML_SUCCESS;
}

#ifndef OLD_DRIVER
nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t d, nvmlDeviceArchitecture_t *architecture) {
    BEGIN(d)
    *architecture = (nvmlDeviceArchitecture_t)gpu_number(d, "architecture", NVML_DEVICE_ARCH_HOPPER);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t d, unsigned int *correctable, unsigned int *uncorrectable,
                                       unsigned int *pending, unsigned int *failed) {
    BEGIN(d)
    *correctable = *uncorrectable = *pending = *failed = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t d, unsigned int *current, unsigned int *pending) {
    BEGIN(d)
    *current = *pending = (unsigned int)gpu_number(d, "mig", 0);
    return NVML_SUCCESS;
}
#endif

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    if (!inits)
        return NVML_ERROR_UNINITIALIZED;
    if (used_sets == (int)(sizeof sets / sizeof *sets))
        return NVML_ERROR_MEMORY;
    set->handle = &sets[used_sets++];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) { // which has to be the newest
    if (used_sets == 0 || set.handle != &sets[used_sets - 1])
        return NVML_ERROR_INVALID_ARGUMENT;
    memset(set.handle, 0, sizeof *set.handle);
    used_sets--;
    return NVML_SUCCESS;
}

static const ULL supported = nvmlEventTypeXidCriticalError | nvmlEventTypeDoubleBitEccError | nvmlEventTypeSingleBitEccError;

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t d, ULL *types) {
    BEGIN(d)
    *types = supported;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t d, ULL types, nvmlEventSet_t set) {
    BEGIN(d)
    if (types & ~supported)
        return NVML_ERROR_NOT_SUPPORTED;
    set.handle->registered[d.handle->index] |= types;
    return NVML_SUCCESS;
}

static long long milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout) {
    long long until = milliseconds() + timeout;
    do {
        for (const char *line = text(); *line;) {
            long id;
            unsigned int index;
            ULL xid;
            if (sscanf(line, "event %ld %u %llu", &id, &index, &xid) == 3 && id > set.handle->delivered && index < MAX_GPUS &&
                set.handle->registered[index] & nvmlEventTypeXidCriticalError) {
                set.handle->delivered = id;
                memset(data, 0, sizeof *data);
                data->device.handle = &gpus[index];
                data->eventType = nvmlEventTypeXidCriticalError;
                data->eventData = xid;
                data->gpuInstanceId = data->computeInstanceId = 0xFFFFFFFF;
                return NVML_SUCCESS;
            }
            line += strcspn(line, "\n");
            line += *line == '\n';
        }
        usleep(5000);
    } while (milliseconds() < until);
    return NVML_ERROR_TIMEOUT;
}
