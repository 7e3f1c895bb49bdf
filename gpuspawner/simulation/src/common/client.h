/* A library's connection to the device daemon. Thread safe; one per process and library. */
#ifndef GPUSPAWNER_SIM_CLIENT_H
#define GPUSPAWNER_SIM_CLIENT_H

#include <stdbool.h>
#include <stddef.h>

#include "protocol.h"

/* Connect if not connected. SIM_OK, or SIM_GONE when no daemon answers. */
int sim_connect(void);
/* The daemon's published page, or NULL when not connected. */
const struct sim_page *sim_page(void);
/* One round trip. *fd gets a descriptor that came along, else -1; fd and value may be NULL. */
int sim_call(enum sim_op op, unsigned card, uint64_t bytes, uint64_t *value, int *fd);
/* What the processes of a cgroup may hold of a card; `cgroup` NULL: the caller's own. */
int sim_get_limits(unsigned card, const char *cgroup, struct sim_limits *limits);
int sim_set_limits(unsigned card, const char *cgroup, uint64_t soft, uint64_t hard);
/* A message without an answer. */
void sim_post(enum sim_op op, unsigned card);
/* Whether the daemon is still there (a system call, no round trip). */
bool sim_connected(void);
/* Drop the connection; a later sim_connect() makes a new one. */
void sim_disconnect(void);
/* A consistent copy of a card's or process's published state. */
void sim_read(const struct sim_page *page, void *copy, const void *from, size_t size);

#endif
