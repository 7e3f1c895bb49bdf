/* A device's facts: what it is and where it sits. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "sim.h"

API nvmlDeviceGetIndex(nvmlDevice device, unsigned *index) {
    FACTS(device, card);
    NEED(index);
    *index = device->index;
    return NVML_SUCCESS;
}
ALIAS(nvmlDeviceGetMinorNumber, nvmlDeviceGetIndex);
ALIAS(nvmlDeviceGetModuleId, nvmlDeviceGetIndex);

API nvmlDeviceGetName(nvmlDevice device, char *name, unsigned size) {
    FACTS(device, card);
    return copy_text(name, size, card.model.name);
}

API nvmlDeviceGetUUID(nvmlDevice device, char *uuid, unsigned size) {
    FACTS(device, card);
    return copy_text(uuid, size, card.uuid);
}

API nvmlDeviceGetSerial(nvmlDevice device, char *serial, unsigned size) {
    FACTS(device, card);
    return copy_text(serial, size, card.serial);
}

API nvmlDeviceGetBrand(nvmlDevice device, unsigned *brand) {
    FACTS(device, card);
    NEED(brand);
    *brand = card.model.nvml_brand;
    return NVML_SUCCESS;
}

API nvmlDeviceGetArchitecture(nvmlDevice device, unsigned *architecture) {
    FACTS(device, card);
    NEED(architecture);
    *architecture = card.model.nvml_architecture;
    return NVML_SUCCESS;
}

API nvmlDeviceGetCudaComputeCapability(nvmlDevice device, int *major, int *minor) {
    FACTS(device, card);
    if (!major || !minor) return NVML_INVALID_ARGUMENT;
    *major = (int)card.model.cc_major;
    *minor = (int)card.model.cc_minor;
    return NVML_SUCCESS;
}

API nvmlDeviceGetNumGpuCores(nvmlDevice device, unsigned *cores) {
    FACTS(device, card);
    NEED(cores);
    *cores = card.model.sm_count * card.model.cores_per_sm;
    return NVML_SUCCESS;
}

API nvmlDeviceGetMemoryBusWidth(nvmlDevice device, unsigned *bits) {
    FACTS(device, card);
    NEED(bits);
    *bits = card.model.bus_width_bits;
    return NVML_SUCCESS;
}

struct pci_v2 { char bus_id[16]; unsigned domain, bus, slot, device_id, subsystem_id, reserved[4]; };
struct pci_v3 { char legacy[16]; unsigned domain, bus, slot, device_id, subsystem_id; char bus_id[32]; };
struct pci_ext { unsigned version, domain, bus, slot, device_id, subsystem_id, base_class, sub_class; char bus_id[32]; };

API nvmlDeviceGetPciInfo_v3(nvmlDevice device, struct pci_v3 *pci) {
    FACTS(device, card);
    NEED(pci);
    memset(pci, 0, sizeof *pci);
    snprintf(pci->legacy, sizeof pci->legacy, "%04X:%02X:%02X.0", card.pci_domain & 0xffff, card.pci_bus & 0xff,
             card.pci_slot & 0xff);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.0", card.pci_domain, card.pci_bus & 0xff,
             card.pci_slot & 0xff);
    pci->domain = card.pci_domain;
    pci->bus = card.pci_bus;
    pci->slot = card.pci_slot;
    pci->device_id = pci->subsystem_id = card.model.pci_device_id;
    return NVML_SUCCESS;
}

API nvmlDeviceGetPciInfo_v2(nvmlDevice device, struct pci_v2 *pci) {
    struct pci_v3 full;
    nvmlReturn result = nvmlDeviceGetPciInfo_v3(device, &full);
    NEED(pci);
    if (!result) memcpy(pci, &full, offsetof(struct pci_v2, reserved));
    return result;
}
ALIAS(nvmlDeviceGetPciInfo, nvmlDeviceGetPciInfo_v2);

API nvmlDeviceGetPciInfoExt(nvmlDevice device, struct pci_ext *pci) {
    struct pci_v3 full;
    nvmlReturn result = nvmlDeviceGetPciInfo_v3(device, &full);
    NEED(pci);
    if (result) return result;
    pci->domain = full.domain, pci->bus = full.bus, pci->slot = full.slot;
    pci->device_id = full.device_id, pci->subsystem_id = full.subsystem_id;
    pci->base_class = 3, pci->sub_class = 2; /* a 3D controller */
    memcpy(pci->bus_id, full.bus_id, sizeof pci->bus_id);
    return NVML_SUCCESS;
}

API nvmlDeviceGetBusType(nvmlDevice device, unsigned *type) {
    FACTS(device, card);
    NEED(type);
    *type = 2; /* PCIe */
    return NVML_SUCCESS;
}

API nvmlDeviceGetVbiosVersion(nvmlDevice device, char *text, unsigned size) {
    FACTS(device, card);
    return copy_text(text, size, "simulated");
}

API nvmlDeviceGetBoardPartNumber(nvmlDevice device, char *text, unsigned size) {
    FACTS(device, card);
    return copy_text(text, size, "simulated");
}

API nvmlDeviceGetBoardId(nvmlDevice device, unsigned *id) {
    FACTS(device, card);
    NEED(id);
    *id = card.pci_bus << 8;
    return NVML_SUCCESS;
}

/* Switches that have one position on a simulated card. */
#define FIXED(name, value) \
    API name(nvmlDevice device, unsigned *out) { \
        CARD(device, card); \
        NEED(out); \
        *out = value; \
        return NVML_SUCCESS; \
    }
FIXED(nvmlDeviceGetComputeMode, 0)      /* default: shared by processes */
FIXED(nvmlDeviceGetPersistenceMode, 1)  /* the daemon is there all the time */
FIXED(nvmlDeviceGetDisplayMode, 0)
FIXED(nvmlDeviceGetDisplayActive, 0)
FIXED(nvmlDeviceGetPerformanceState, 0) /* P0 */
FIXED(nvmlDeviceGetPowerState, 0)
FIXED(nvmlDeviceGetPowerManagementMode, 1)
FIXED(nvmlDeviceGetMultiGpuBoard, 0)
FIXED(nvmlDeviceGetVirtualizationMode, 0)
FIXED(nvmlDeviceGetAccountingMode, 0)

/* ---- topology: one board, every card a switch away from every other ---- */
API nvmlDeviceGetTopologyCommonAncestor(nvmlDevice one, nvmlDevice other, unsigned *level) {
    CARD(one, card);
    CARD(other, peer);
    NEED(level);
    *level = one == other ? 0 : 20;
    return NVML_SUCCESS;
}

API nvmlDeviceGetTopologyNearestGpus(nvmlDevice device, unsigned level, unsigned *count, nvmlDevice *list) {
    CARD(device, card);
    NEED(count);
    const struct sim_page *page = sim_page();
    unsigned room = *count, found = 0;
    for (unsigned i = 0; page && i < page->card_count; i++) {
        if (i == device->index || level != 20) continue;
        if (list && found < room) device_at(i, &list[found]);
        found++;
    }
    *count = list && found > room ? room : found;
    return NVML_SUCCESS;
}

API nvmlDeviceGetP2PStatus(nvmlDevice one, nvmlDevice other, unsigned index, unsigned *status) {
    CARD(one, card);
    CARD(other, peer);
    if (!status || index > 4) return NVML_INVALID_ARGUMENT;
    *status = 0;
    return NVML_SUCCESS;
}

API nvmlDeviceOnSameBoard(nvmlDevice one, nvmlDevice other, int *same) {
    CARD(one, card);
    CARD(other, peer);
    NEED(same);
    *same = one == other;
    return NVML_SUCCESS;
}

static nvmlReturn all_bits(nvmlDevice device, unsigned size, unsigned long *set, unsigned long first) {
    CARD(device, card);
    if (!size || !set) return NVML_INVALID_ARGUMENT;
    memset(set, 0, size * sizeof *set);
    set[0] = first;
    return NVML_SUCCESS;
}

API nvmlDeviceGetMemoryAffinity(nvmlDevice device, unsigned size, unsigned long *set, unsigned scope) {
    (void)scope;
    return all_bits(device, size, set, 1); /* NUMA node 0 */
}

API nvmlDeviceGetCpuAffinity(nvmlDevice device, unsigned size, unsigned long *set) {
    return all_bits(device, size, set, ~0ul);
}

API nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice device, unsigned size, unsigned long *set, unsigned scope) {
    (void)scope;
    return all_bits(device, size, set, ~0ul);
}
