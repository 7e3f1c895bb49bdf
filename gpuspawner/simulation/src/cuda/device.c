/* Devices: names, properties, attributes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

static const struct sim_card *card_at(CUdevice device) { return &driver.page->cards[driver.card_of[device]]; }

API cuDeviceGetCount(int *count) {
    NEED_INIT();
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = driver.device_count;
    return CUDA_SUCCESS;
}

API cuDeviceGet(CUdevice *device, int ordinal) {
    NEED_INIT();
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    NEED_DEVICE(ordinal);
    *device = ordinal;
    return CUDA_SUCCESS;
}

API cuDeviceGetName(char *name, int size, CUdevice device) {
    NEED_DEVICE(device);
    if (!name || size <= 0) return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)size, "%s", card_at(device)->model.name);
    return CUDA_SUCCESS;
}

static void uuid_bytes(const char *text, CUuuid *uuid) {
    text += 4; /* "GPU-" or "MIG-" */
    for (int i = 0; i < 16; i++) {
        while (*text == '-') text++;
        char pair[3] = {text[0], text[1], 0};
        uuid->bytes[i] = (char)strtoul(pair, NULL, 16);
        text += 2;
    }
}

API cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    NEED_DEVICE(device);
    if (!uuid) return CUDA_ERROR_INVALID_VALUE;
    uuid_bytes(card_at(device)->uuid, uuid);
    return CUDA_SUCCESS;
}

/* The older form knows no MIG devices: it names the card. */
API cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    NEED_DEVICE(device);
    if (!uuid) return CUDA_ERROR_INVALID_VALUE;
    const struct sim_card *card = card_at(device);
    uuid_bytes(card->slice ? driver.page->cards[card->parent].uuid : card->uuid, uuid);
    return CUDA_SUCCESS;
}

API cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    NEED_DEVICE(device);
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    *bytes = card_at(device)->model.memory_bytes;
    return CUDA_SUCCESS;
}

/* The first form of this function had 32 bits for the answer, and so has this one. */
API cuDeviceTotalMem(unsigned *bytes, CUdevice device) {
    size_t whole;
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = cuDeviceTotalMem_v2(&whole, device);
    if (!result) *bytes = whole > UINT32_MAX ? UINT32_MAX : (unsigned)whole;
    return result;
}

API cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
    NEED_DEVICE(device);
    if (!major || !minor) return CUDA_ERROR_INVALID_VALUE;
    *major = (int)card_at(device)->model.cc_major;
    *minor = (int)card_at(device)->model.cc_minor;
    return CUDA_SUCCESS;
}

API cuDeviceGetProperties(int *property, CUdevice device) {
    NEED_DEVICE(device);
    if (!property) return CUDA_ERROR_INVALID_VALUE;
    const int values[] = {1024, 1024, 1024, 64, 0x7fffffff, 65535, 65535, 49152, 65536, 32, 0x7fffffff, 65536,
                          (int)card_at(device)->model.sm_clock_mhz * 1000, 512};
    memcpy(property, values, sizeof values);
    return CUDA_SUCCESS;
}

API cuDeviceGetPCIBusId(char *text, int size, CUdevice device) {
    NEED_DEVICE(device);
    if (!text || size < 13) return CUDA_ERROR_INVALID_VALUE;
    const struct sim_card *card = card_at(device);
    snprintf(text, (size_t)size, "%04X:%02X:%02X.0", card->pci_domain, card->pci_bus, card->pci_slot);
    return CUDA_SUCCESS;
}

API cuDeviceGetByPCIBusId(CUdevice *device, const char *text) {
    NEED_INIT();
    unsigned domain = 0, bus, slot;
    if (!device || !text) return CUDA_ERROR_INVALID_VALUE;
    if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(text, "%x:%x", &bus, &slot) != 2) return CUDA_ERROR_INVALID_VALUE;
    }
    for (int i = 0; i < driver.device_count; i++) {
        const struct sim_card *card = card_at(i);
        if (card->pci_domain == domain && card->pci_bus == bus && card->pci_slot == slot)
            return *device = i, CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

API cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    NEED_DEVICE(device);
    NEED_DEVICE(peer);
    if (!can) return CUDA_ERROR_INVALID_VALUE;
    *can = device != peer;
    return CUDA_SUCCESS;
}

API cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice device, CUdevice peer) {
    NEED_DEVICE(device);
    NEED_DEVICE(peer);
    if (!value || device == peer || attribute < 1 || attribute > 4) return CUDA_ERROR_INVALID_VALUE;
    *value = attribute == 1 ? 0 : 1; /* rank 0 is best; access, atomics and arrays are there */
    return CUDA_SUCCESS;
}

static int attribute_value(const struct sim_card *card, int attribute) {
    const struct sim_model *model = &card->model;
    switch (attribute) {
    case 1: return 1024;         /* max threads per block */
    case 2: case 3: return 1024; /* block x, y */
    case 4: return 64;           /* block z */
    case 5: return 0x7fffffff;   /* grid x */
    case 6: case 7: return 65535;
    case 8: return 49152; /* shared memory per block */
    case 9: return 65536; /* constant memory */
    case 10: return 32;   /* warp */
    case 11: return 0x7fffffff;
    case 12: return 65536; /* registers per block */
    case 13: return (int)model->sm_clock_mhz * 1000;
    case 14: return 512;
    case 15: return 1;
    case 16: return (int)model->sm_count;
    case 19: return 1;
    case 21: return 131072;
    case 22: return 131072;
    case 23: return 65536;
    case 24: case 25: case 26: return 16384;
    case 27: case 28: return 32768;
    case 29: return 2048;
    case 30: return 512;
    case 31: return 1; /* concurrent kernels */
    case 32: return 1; /* ECC */
    case 33: return (int)card->pci_bus;
    case 34: return (int)card->pci_slot;
    case 36: return (int)model->memory_clock_mhz * 1000;
    case 37: return (int)model->bus_width_bits;
    case 38: return (int)model->l2_bytes;
    case 39: return 2048; /* threads per SM */
    case 40: return 3;    /* copy engines */
    case 41: return 1;    /* unified addressing */
    case 42: return 32768;
    case 43: return 2048;
    case 45: case 46: return 32768;
    case 47: case 48: return 8192;
    case 49: return 32768;
    case 50: return (int)card->pci_domain;
    case 51: return 32;
    case 52: case 53: return 32768;
    case 54: return 2046;
    case 55: return 32768;
    case 56: return 131072;
    case 57: return 65536;
    case 58: case 59: case 60: return 16384;
    case 61: return 32768;
    case 62: return 2048;
    case 63: case 64: return 32768;
    case 65: return 2048;
    case 66: case 67: return 32768;
    case 68: return 2046;
    case 69: return 268435456;
    case 70: return 131072;
    case 71: return 65000;
    case 72: return 2097120;
    case 73: case 74: return 32768;
    case 75: return (int)model->cc_major;
    case 76: return (int)model->cc_minor;
    case 77: return 32768;
    case 78: case 79: case 80: return 1; /* priorities, L1 caches */
    case 81: return (int)model->shared_per_sm;
    case 82: return 65536; /* registers per SM */
    case 83: return 1;     /* managed memory */
    case 85: return 0;
    case 87: return (int)model->fp64_ratio;
    case 89: return 1; /* concurrent managed access */
    case 90: return 1; /* compute preemption */
    case 91: return 1;
    case 95: return 1; /* cooperative launch */
    case 97: return (int)model->shared_per_block_optin;
    case 99: return 1;  /* host register */
    case 102: return 1; /* virtual memory management */
    case 106: return 32; /* blocks per SM */
    case 108: return model->cc_major >= 8 ? (int)(model->l2_bytes * 3 / 4) : 0;
    case 109: return model->cc_major >= 8 ? 134213632 : 0;
    case 111: return model->cc_major >= 8 ? 1024 : 0; /* reserved shared memory per block */
    case 113: return 1;
    case 115: return 1; /* memory pools */
    case 120: return model->cc_major >= 9; /* clusters */
    case 121: return 1;
    case 126: return model->cc_major >= 9 ? 4 : 1;
    case 129: return 1;
    case 131: return -1; /* NUMA node of the card's memory: none */
    case 134: return 0;
    case 140: return (int)model->pci_device_id;
    default: return 0; /* what is not listed is not there */
    }
}

API cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    NEED_DEVICE(device);
    if (!value || attribute < 1 || attribute > 161) return CUDA_ERROR_INVALID_VALUE;
    *value = attribute_value(card_at(device), attribute);
    return CUDA_SUCCESS;
}

API cuDeviceGetLuid(char *luid, unsigned *mask, CUdevice device) {
    (void)luid;
    (void)mask;
    NEED_DEVICE(device);
    return CUDA_ERROR_NOT_SUPPORTED; /* Windows only */
}

API cuDeviceGetExecAffinitySupport(int *supported, int type, CUdevice device) {
    NEED_DEVICE(device);
    if (!supported || type) return CUDA_ERROR_INVALID_VALUE;
    *supported = 0;
    return CUDA_SUCCESS;
}

API cuDeviceGetTexture1DLinearMaxWidth(size_t *width, int format, unsigned channels, CUdevice device) {
    (void)format;
    NEED_DEVICE(device);
    if (!width || !channels) return CUDA_ERROR_INVALID_VALUE;
    *width = 268435456;
    return CUDA_SUCCESS;
}
