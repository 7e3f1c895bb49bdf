/* A program in a container that uses a card by the driver's own interface, or by the library that it is given, asked line
 * by line:
 * "info" -> free and total bytes, "alloc BYTES" -> the driver's answer (0: success), "free" -> all of it, "name",
 * "wait BYTES" -> the monotonic clock in ns when the card's total is that for the first time. */
#define _POSIX_C_SOURCE 199309L
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef unsigned long long pointer_t;

static void *library;

static void *find(const char *name) {
  void *found = dlsym(library, name);
  if (!found) {
    fprintf(stderr, "%s is missing\n", name);
    exit(2);
  }
  return found;
}

#define CALL(name, ...) ((int (*)(__VA_ARGS__))find(name))

int main(int count_of_words, char **words) {
  static pointer_t held[4096];
  int count = 0, device = 0;
  void *context = NULL;
  char line[256];
  setvbuf(stdout, NULL, _IOLBF, 0);
  library = dlopen(count_of_words > 1 ? words[1] : "libcuda.so.1", RTLD_NOW);
  if (!library) {
    printf("no driver: %s\n", dlerror());
    return 1;
  }
  int error = CALL("cuInit", unsigned)(0);
  if (!error) error = CALL("cuDeviceGet", int *, int)(&device, 0);
  if (!error) error = CALL("cuDevicePrimaryCtxRetain", void **, int)(&context, device);
  if (!error) error = CALL("cuCtxSetCurrent", void *)(context);
  if (error) {
    printf("error %d\n", error);
    return 1;
  }
  printf("ready\n");
  while (fgets(line, sizeof line, stdin)) {
    size_t free_bytes = 0, total = 0, size = 0;
    if (!strncmp(line, "info", 4)) {
      error = CALL("cuMemGetInfo_v2", size_t *, size_t *)(&free_bytes, &total);
      printf("%d %zu %zu\n", error, free_bytes, total);
    } else if (sscanf(line, "alloc %zu", &size) == 1 && count < 4096) {
      error = CALL("cuMemAlloc_v2", pointer_t *, size_t)(&held[count], size);
      if (!error) count++;
      printf("%d\n", error);
    } else if (!strncmp(line, "free", 4)) {
      error = 0;
      while (count) error |= CALL("cuMemFree_v2", pointer_t)(held[--count]);
      printf("%d\n", error);
    } else if (sscanf(line, "wait %zu", &size) == 1) {
      struct timespec now = {0, 0}, pause = {0, 100000};
      for (;;) {
        error = CALL("cuMemGetInfo_v2", size_t *, size_t *)(&free_bytes, &total);
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (error || total == size) break;
        nanosleep(&pause, NULL);
      }
      printf("%lld\n", error ? -1LL : now.tv_sec * 1000000000LL + now.tv_nsec);
    } else if (!strncmp(line, "name", 4)) {
      char name[128] = "";
      CALL("cuDeviceGetName", char *, int, int)(name, sizeof name, device);
      printf("%s\n", name);
    } else {
      printf("?\n");
    }
  }
  return 0;
}
