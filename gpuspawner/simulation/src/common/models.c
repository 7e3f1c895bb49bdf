/* Card models. Figures come from NVIDIA's public data sheets and architecture white papers (V100 2017,
 * A100 2020, H100 2022, H200 2023: multiprocessors, clocks, bus width, caches, board power, NVLink) and
 * from the CUDA programming guide's table of compute capabilities (shared memory). Memory is what the
 * driver's tools report for the board. Idle power and idle clock are typical readings, not promises. */
#include "models.h"

#include <string.h>

#define MIB (1ull << 20)
#define KIB 1024u

static const struct sim_model models[] = {
    {
        .slug = "v100-16gb", .name = "Tesla V100-SXM2-16GB (simulated)", .memory_bytes = 16384 * MIB,
        .cc_major = 7, .cc_minor = 0, .sm_count = 80, .cores_per_sm = 64,
        .sm_clock_mhz = 1530, .sm_clock_idle_mhz = 135, .memory_clock_mhz = 877,
        .bus_width_bits = 4096, .l2_bytes = 6 * MIB,
        .power_limit_mw = 300000, .power_min_mw = 150000, .power_idle_mw = 42000,
        .pcie_gen = 3, .pcie_width = 16, .nvlinks = 6, .nvlink_version = 2, .nvlink_mbps = 25781,
        .pci_device_id = 0x1DB110DE, .shared_per_sm = 96 * KIB, .shared_per_block_optin = 96 * KIB,
        .nvml_architecture = 5, .nvml_brand = 2,
        .temperature_slowdown = 87, .temperature_shutdown = 90, .temperature_memory_max = 85, .fp64_ratio = 2,
    },
    {
        .slug = "v100-32gb", .name = "Tesla V100-SXM2-32GB (simulated)", .memory_bytes = 32768 * MIB,
        .cc_major = 7, .cc_minor = 0, .sm_count = 80, .cores_per_sm = 64,
        .sm_clock_mhz = 1530, .sm_clock_idle_mhz = 135, .memory_clock_mhz = 877,
        .bus_width_bits = 4096, .l2_bytes = 6 * MIB,
        .power_limit_mw = 300000, .power_min_mw = 150000, .power_idle_mw = 42000,
        .pcie_gen = 3, .pcie_width = 16, .nvlinks = 6, .nvlink_version = 2, .nvlink_mbps = 25781,
        .pci_device_id = 0x1DB510DE, .shared_per_sm = 96 * KIB, .shared_per_block_optin = 96 * KIB,
        .nvml_architecture = 5, .nvml_brand = 2,
        .temperature_slowdown = 87, .temperature_shutdown = 90, .temperature_memory_max = 85, .fp64_ratio = 2,
    },
    {
        .slug = "a100-40gb", .name = "NVIDIA A100-SXM4-40GB (simulated)", .memory_bytes = 40960 * MIB,
        .cc_major = 8, .cc_minor = 0, .sm_count = 108, .cores_per_sm = 64,
        .sm_clock_mhz = 1410, .sm_clock_idle_mhz = 210, .memory_clock_mhz = 1215,
        .bus_width_bits = 5120, .l2_bytes = 40 * MIB,
        .power_limit_mw = 400000, .power_min_mw = 100000, .power_idle_mw = 52000,
        .pcie_gen = 4, .pcie_width = 16, .nvlinks = 12, .nvlink_version = 3, .nvlink_mbps = 25000,
        .pci_device_id = 0x20B010DE, .shared_per_sm = 164 * KIB, .shared_per_block_optin = 163 * KIB,
        .nvml_architecture = 7, .nvml_brand = 14,
        .temperature_slowdown = 89, .temperature_shutdown = 92, .temperature_memory_max = 95, .fp64_ratio = 2,
    },
    {
        .slug = "a100-80gb", .name = "NVIDIA A100-SXM4-80GB (simulated)", .memory_bytes = 81920 * MIB,
        .cc_major = 8, .cc_minor = 0, .sm_count = 108, .cores_per_sm = 64,
        .sm_clock_mhz = 1410, .sm_clock_idle_mhz = 210, .memory_clock_mhz = 1593,
        .bus_width_bits = 5120, .l2_bytes = 40 * MIB,
        .power_limit_mw = 400000, .power_min_mw = 100000, .power_idle_mw = 60000,
        .pcie_gen = 4, .pcie_width = 16, .nvlinks = 12, .nvlink_version = 3, .nvlink_mbps = 25000,
        .pci_device_id = 0x20B210DE, .shared_per_sm = 164 * KIB, .shared_per_block_optin = 163 * KIB,
        .nvml_architecture = 7, .nvml_brand = 14,
        .temperature_slowdown = 89, .temperature_shutdown = 92, .temperature_memory_max = 95, .fp64_ratio = 2,
    },
    {
        .slug = "h100-80gb", .name = "NVIDIA H100 80GB HBM3 (simulated)", .memory_bytes = 81559 * MIB,
        .cc_major = 9, .cc_minor = 0, .sm_count = 132, .cores_per_sm = 128,
        .sm_clock_mhz = 1980, .sm_clock_idle_mhz = 345, .memory_clock_mhz = 2619,
        .bus_width_bits = 5120, .l2_bytes = 50 * MIB,
        .power_limit_mw = 700000, .power_min_mw = 200000, .power_idle_mw = 70000,
        .pcie_gen = 5, .pcie_width = 16, .nvlinks = 18, .nvlink_version = 4, .nvlink_mbps = 26562,
        .pci_device_id = 0x233010DE, .shared_per_sm = 228 * KIB, .shared_per_block_optin = 227 * KIB,
        .nvml_architecture = 9, .nvml_brand = 14,
        .temperature_slowdown = 89, .temperature_shutdown = 92, .temperature_memory_max = 95, .fp64_ratio = 2,
    },
    {
        .slug = "h200-141gb", .name = "NVIDIA H200 (simulated)", .memory_bytes = 143771 * MIB,
        .cc_major = 9, .cc_minor = 0, .sm_count = 132, .cores_per_sm = 128,
        .sm_clock_mhz = 1980, .sm_clock_idle_mhz = 345, .memory_clock_mhz = 3201,
        .bus_width_bits = 6144, .l2_bytes = 50 * MIB,
        .power_limit_mw = 700000, .power_min_mw = 200000, .power_idle_mw = 76000,
        .pcie_gen = 5, .pcie_width = 16, .nvlinks = 18, .nvlink_version = 4, .nvlink_mbps = 26562,
        .pci_device_id = 0x233510DE, .shared_per_sm = 228 * KIB, .shared_per_block_optin = 227 * KIB,
        .nvml_architecture = 9, .nvml_brand = 14,
        .temperature_slowdown = 89, .temperature_shutdown = 92, .temperature_memory_max = 95, .fp64_ratio = 2,
    },
};

const struct sim_model *sim_model_at(unsigned i) {
    return i < sizeof models / sizeof *models ? &models[i] : NULL;
}

const struct sim_model *sim_model_find(const char *slug) {
    for (unsigned i = 0; i < sizeof models / sizeof *models; i++)
        if (!strcmp(models[i].slug, slug)) return &models[i];
    return NULL;
}
