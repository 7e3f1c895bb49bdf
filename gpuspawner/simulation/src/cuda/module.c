/* Modules, libraries and functions. Code is accepted and never run: names are checked where the code is
 * PTX text, which lists them; binary code is taken at its word. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define MOST_NAME 512

struct function {
    struct object object;
    struct module *module;
    char name[MOST_NAME];
    int dynamic_shared, cache_config;
    struct function *next;
};

struct module {
    struct object object;
    char *text; /* PTX, or NULL */
    struct function *functions;
};

static CUresult module_new(const void *image, struct module **out) {
    if (!image || !out) return CUDA_ERROR_INVALID_VALUE;
    const char *bytes = image;
    static const unsigned fatbin_wrapper = 0x466243b1, fatbin = 0xba55ed50;
    bool elf = !memcmp(bytes, "\177ELF", 4), binary = elf || !memcmp(bytes, &fatbin_wrapper, 4) || !memcmp(bytes, &fatbin, 4);
    if (!binary && !(strnlen(bytes, 1 << 26) < 1 << 26 && strstr(bytes, ".version"))) return CUDA_ERROR_INVALID_IMAGE;
    LOCK();
    struct module *module = object_new(KIND_MODULE, sizeof *module);
    UNLOCK();
    if (!module) return CUDA_ERROR_OPERATING_SYSTEM;
    module->text = binary ? NULL : strdup(bytes);
    *out = module;
    return CUDA_SUCCESS;
}

static CUresult module_file(const char *path, struct module **out) {
    FILE *file = path ? fopen(path, "rbe") : NULL;
    if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
    char *bytes = calloc(1, (1 << 26) + 1);
    size_t size = bytes ? fread(bytes, 1, 1 << 26, file) : 0;
    fclose(file);
    CUresult result = size >= 4 ? module_new(bytes, out) : CUDA_ERROR_INVALID_IMAGE;
    free(bytes);
    return result;
}

static void module_end(struct module *module) {
    LOCK();
    for (struct function *function = module->functions, *next; function; function = next) {
        next = function->next;
        object_free(function);
    }
    free(module->text);
    object_free(module);
    UNLOCK();
}

static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '$' || c == '%';
}

static bool has_entry(const char *text, const char *name) {
    size_t length = strlen(name);
    for (const char *at = text; (at = strstr(at, ".entry"));) {
        at += 6;
        while (*at == ' ' || *at == '\t' || *at == '\n') at++;
        if (!strncmp(at, name, length) && !is_name(at[length])) return true;
    }
    return false;
}

static CUresult function_get(struct module *module, const char *name, struct function **out) {
    if (!name || !*name || !out) return CUDA_ERROR_INVALID_VALUE;
    if (strlen(name) >= MOST_NAME) return CUDA_ERROR_NOT_FOUND;
    LOCK();
    struct function *function = module->functions;
    while (function && strcmp(function->name, name)) function = function->next;
    CUresult result = CUDA_SUCCESS;
    if (!function) {
        if (module->text && !has_entry(module->text, name)) result = CUDA_ERROR_NOT_FOUND;
        else if (!(function = object_new(KIND_FUNCTION, sizeof *function))) result = CUDA_ERROR_OPERATING_SYSTEM;
        if (!result) {
            function->module = module;
            snprintf(function->name, sizeof function->name, "%s", name);
            function->next = module->functions;
            module->functions = function;
        }
    }
    if (!result) *out = function;
    UNLOCK();
    return result;
}

const char *function_name(CUfunction function) {
    return object_valid(function, KIND_FUNCTION) ? function->name : NULL;
}

#define CHECK_MODULE(module) do { NEED_INIT(); \
    if (!object_valid(module, KIND_MODULE)) return CUDA_ERROR_INVALID_HANDLE; } while (0)
#define CHECK_FUNCTION(function) do { NEED_INIT(); \
    if (!object_valid(function, KIND_FUNCTION)) return CUDA_ERROR_INVALID_HANDLE; } while (0)

API cuModuleLoadData(CUmodule *module, const void *image) {
    NEED_CONTEXT(context);
    return module_new(image, module);
}

API cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options, void **values) {
    (void)count, (void)options, (void)values; /* options are for the compiler, and nothing is compiled */
    return cuModuleLoadData(module, image);
}

API cuModuleLoadFatBinary(CUmodule *module, const void *image) { return cuModuleLoadData(module, image); }

API cuModuleLoad(CUmodule *module, const char *path) {
    NEED_CONTEXT(context);
    return module_file(path, module);
}

API cuModuleUnload(CUmodule module) {
    CHECK_MODULE(module);
    module_end(module);
    return CUDA_SUCCESS;
}

API cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    CHECK_MODULE(module);
    return function_get(module, name, function);
}

API cuModuleGetGlobal_v2(CUdeviceptr *pointer, size_t *size, CUmodule module, const char *name) {
    (void)pointer, (void)size, (void)name;
    CHECK_MODULE(module);
    return CUDA_ERROR_NOT_FOUND;
}

API cuModuleGetLoadingMode(int *mode) {
    NEED_INIT();
    if (!mode) return CUDA_ERROR_INVALID_VALUE;
    *mode = 2; /* lazy */
    return CUDA_SUCCESS;
}

API cuModuleGetFunctionCount(unsigned *count, CUmodule module) {
    CHECK_MODULE(module);
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = 0;
    for (const char *at = module->text; at && (at = strstr(at, ".entry")); at += 6) ++*count;
    return CUDA_SUCCESS;
}

/* Libraries are modules without a context, kernels are their functions. */
API cuLibraryLoadData(CUmodule *library, const void *code, int *jit, void **jit_values, unsigned jit_count, int *options,
                      void **values, unsigned count) {
    (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    NEED_INIT();
    return module_new(code, library);
}

API cuLibraryLoadFromFile(CUmodule *library, const char *path, int *jit, void **jit_values, unsigned jit_count,
                          int *options, void **values, unsigned count) {
    (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    NEED_INIT();
    return module_file(path, library);
}

API cuLibraryUnload(CUmodule library) { return cuModuleUnload(library); }

API cuLibraryGetKernel(CUfunction *kernel, CUmodule library, const char *name) {
    return cuModuleGetFunction(kernel, library, name);
}

API cuLibraryGetModule(CUmodule *module, CUmodule library) {
    NEED_CONTEXT(context);
    CHECK_MODULE(library);
    if (!module) return CUDA_ERROR_INVALID_VALUE;
    *module = library;
    return CUDA_SUCCESS;
}

API cuLibraryGetGlobal(CUdeviceptr *pointer, size_t *size, CUmodule library, const char *name) {
    return cuModuleGetGlobal_v2(pointer, size, library, name);
}

API cuLibraryGetKernelCount(unsigned *count, CUmodule library) { return cuModuleGetFunctionCount(count, library); }

API cuKernelGetFunction(CUfunction *function, CUfunction kernel) {
    NEED_CONTEXT(context);
    CHECK_FUNCTION(kernel);
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    *function = kernel;
    return CUDA_SUCCESS;
}

API cuKernelGetLibrary(CUmodule *library, CUfunction kernel) {
    CHECK_FUNCTION(kernel);
    if (!library) return CUDA_ERROR_INVALID_VALUE;
    *library = kernel->module;
    return CUDA_SUCCESS;
}
ALIAS(cuFuncGetModule, cuKernelGetLibrary);

API cuFuncGetName(const char **name, CUfunction function) {
    CHECK_FUNCTION(function);
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    *name = function->name;
    return CUDA_SUCCESS;
}
ALIAS(cuKernelGetName, cuFuncGetName);

API cuFuncGetAttribute(int *value, int attribute, CUfunction function) {
    CHECK_FUNCTION(function);
    if (!value || attribute < 0 || attribute > 17) return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case 0: *value = 1024; break; /* threads per block */
    case 4: *value = 32; break;   /* registers */
    case 5: case 6: *value = 90; break;
    case 8: *value = function->dynamic_shared ? function->dynamic_shared : 49152; break;
    case 9: *value = -1; break;
    default: *value = 0;
    }
    return CUDA_SUCCESS;
}

API cuFuncSetAttribute(CUfunction function, int attribute, int value) {
    CHECK_FUNCTION(function);
    if (attribute < 8 || attribute > 17) return CUDA_ERROR_INVALID_VALUE;
    if (attribute == 8) function->dynamic_shared = value;
    return CUDA_SUCCESS;
}

API cuKernelGetAttribute(int *value, int attribute, CUfunction kernel, CUdevice device) {
    NEED_DEVICE(device);
    return cuFuncGetAttribute(value, attribute, kernel);
}

API cuKernelSetAttribute(int attribute, int value, CUfunction kernel, CUdevice device) {
    NEED_DEVICE(device);
    return cuFuncSetAttribute(kernel, attribute, value);
}

API cuFuncSetCacheConfig(CUfunction function, int config) {
    CHECK_FUNCTION(function);
    if (config < 0 || config > 3) return CUDA_ERROR_INVALID_VALUE;
    function->cache_config = config;
    return CUDA_SUCCESS;
}

API cuKernelSetCacheConfig(CUfunction kernel, int config, CUdevice device) {
    NEED_DEVICE(device);
    return cuFuncSetCacheConfig(kernel, config);
}

API cuFuncSetSharedMemConfig(CUfunction function, int config) {
    CHECK_FUNCTION(function);
    return config < 0 || config > 2 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API cuFuncIsLoaded(int *state, CUfunction function) {
    CHECK_FUNCTION(function);
    if (!state) return CUDA_ERROR_INVALID_VALUE;
    *state = 1;
    return CUDA_SUCCESS;
}

API cuFuncLoad(CUfunction function) {
    CHECK_FUNCTION(function);
    return CUDA_SUCCESS;
}
