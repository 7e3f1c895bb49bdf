/* compute MICROSECONDS HOW DEVICE: launches kernels that take so long on a simulated card (timed mode), without end.
 * HOW: plain, or sync to wait for each; ex, cooperative, multi, graph: by another call; thread: by the form for the
 * per-thread default stream that cuGetProcAddress gives. Says "ready" when the first has run. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct size {
    unsigned grid[3], block[3], shared;
};
struct config { /* CUlaunchConfig */
    struct size size;
    void *stream, *attributes;
    unsigned attribute_count;
};
struct params { /* CUDA_LAUNCH_PARAMS */
    void *function;
    struct size size;
    void *stream, **parameters;
};
struct node { /* CUDA_KERNEL_NODE_PARAMS_v2 */
    void *function;
    struct size size;
    void **parameters, **extra, *kernel, *context;
};
typedef int launch_function(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                            void **);

static void *library;
static const struct size one = {{1, 1, 1}, {32, 1, 1}, 0};

static void check(int result, const char *what)
{
    if (result != 0) {
        fprintf(stderr, "%s: %d\n", what, result);
        exit(3);
    }
}

#define CALL(name, ...) check(((int (*)())dlsym(library, name))(__VA_ARGS__), name)

int main(int count, char **words)
{
    if (count != 4 || (library = dlopen("libcuda.so.1", RTLD_NOW)) == NULL)
        return 2;
    const char *how = words[2];
    char name[32], code[128];
    void *context, *module, *function, *stream, *graph, *run, *node;
    launch_function *launch = (launch_function *)dlsym(library, "cuLaunchKernel"), *found = NULL;
    snprintf(name, sizeof name, "k_us%d", atoi(words[1]));
    snprintf(code, sizeof code, ".version 8.0\n.entry %s() { ret; }\n", name);
    CALL("cuInit", 0);
    CALL("cuDevicePrimaryCtxRetain", &context, atoi(words[3]));
    CALL("cuCtxSetCurrent", context);
    CALL("cuModuleLoadData", &module, code);
    CALL("cuModuleGetFunction", &function, module, name);
    CALL("cuStreamCreate", &stream, 0);
    CALL("cuGraphCreate", &graph, 0);
    struct node kernel = {function, one, NULL, NULL, NULL, NULL};
    CALL("cuGraphAddKernelNode_v2", &node, graph, NULL, (size_t)0, &kernel);
    CALL("cuGraphInstantiateWithFlags", &run, graph, (unsigned long long)0);
    CALL("cuGetProcAddress_v2", "cuLaunchKernel", &found, 12000, (uint64_t)2, NULL);
    if (strcmp(how, "thread") == 0)
        launch = found;
    struct config config = {one, stream, NULL, 0};
    struct params params = {function, one, stream, NULL};
    for (int first = 1;; first = 0) {
        if (strcmp(how, "ex") == 0)
            CALL("cuLaunchKernelEx", &config, function, NULL, NULL);
        else if (strcmp(how, "cooperative") == 0)
            CALL("cuLaunchCooperativeKernel", function, 1, 1, 1, 32, 1, 1, 0, stream, NULL);
        else if (strcmp(how, "multi") == 0)
            CALL("cuLaunchCooperativeKernelMultiDevice", &params, 1, 0);
        else if (strcmp(how, "graph") == 0)
            CALL("cuGraphLaunch", run, stream);
        else
            check(launch(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
        if (first || strcmp(how, "sync") == 0)
            CALL("cuCtxSynchronize", );
        if (first) {
            puts("ready");
            fflush(stdout);
        }
    }
}
