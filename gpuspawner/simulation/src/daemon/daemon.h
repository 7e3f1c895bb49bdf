/* The device daemon's own state. One thread; everything happens in its poll loop. */
#ifndef GPUSPAWNER_SIM_DAEMON_H
#define GPUSPAWNER_SIM_DAEMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "../common/protocol.h"

#define MAX_CLIENTS 4096
#define MAX_CLIENTS_PER_USER 1024 /* so that one user cannot take all process slots */

#define SIM_CGROUP_MAX 512

struct client;

/* What epoll hands back: which descriptor of which client has something. */
enum source_kind { SOURCE_LISTENER, SOURCE_CONTROL, SOURCE_SIGNAL, SOURCE_CLIENT, SOURCE_PIDFD };
struct source {
    enum source_kind kind;
    struct client *client;
};

struct queue { /* timed mode: one process's channel on one card */
    struct sim_channel *channel;
    struct client *client;
    struct queue *next; /* round robin ring of the card */
    uint64_t done;      /* our own count; the page's copy could be changed by the client */
    uint64_t remaining_ns;
    bool started;
    uint64_t busy_ns;  /* in the current reading of utilisation */
    uint64_t total_ns; /* ever */
};

struct client {
    int fd, pidfd;
    pid_t pid;
    uid_t uid;
    bool greeted;
    bool control; /* came by the control socket, which takes commands and nothing else */
    char cgroup[SIM_CGROUP_MAX]; /* whom its memory is charged to; empty while it holds none */
    int slot; /* in sim_page.processes, -1 until the first context or allocation */
    uint64_t used[SIM_MAX_PLACES];
    uint32_t contexts[SIM_MAX_PLACES];
    struct queue *queues[SIM_MAX_PLACES];
    struct source socket_source, pid_source;
    struct client *next, *previous;
    bool dead;
};

struct daemon_card {
    /* Metrics set by a control command stay so (has_*), others follow the load. */
    bool has_power, has_utilization, has_temperature, has_clocks;
    uint32_t busy_percent;
    uint64_t refusals; /* so many requests for memory are still to be refused, as by a driver that is out of something */
    struct queue *queues; /* the one whose turn it is */
    uint64_t now_ns;      /* up to here the card's work has been played */
    uint64_t slice_left_ns;
    uint64_t busy_ns, window_start_ns;
    uint64_t total_ns; /* busy, ever */
};

struct state {
    struct sim_page *page;
    int page_fd; /* for reading, handed to clients */
    struct daemon_card cards[SIM_MAX_PLACES];
    struct client *clients, *dead_clients;
    unsigned client_count;
    bool quit, quit_when_unused;
    int epoll_fd, listen_fd, control_fd;
    uint64_t slice_ns;
    enum below_usage { BELOW_ACCEPT, BELOW_REFUSE, BELOW_IGNORE } below_usage;
};

extern struct state sim;

uint64_t now_ns(void);

/* card.c */
bool cards_create(const char *spec, unsigned node, bool timed, char *error, size_t error_size);
void page_write_begin(void);
void page_write_end(void);
/* Bring power, temperature and clocks in line with the load and the overrides; counts the energy so far. */
void card_follow_load(unsigned card);
void card_xid(unsigned card, uint32_t code);

/* Whether a card or a MIG slice is there. */
bool place_there(unsigned place);

/* limits.c: what the processes of a cgroup may hold of a card, as the driver's own accounting does it. */
int limits_set(unsigned card, const char *cgroup, uint64_t soft, uint64_t hard);
int limits_get(unsigned card, const char *cgroup, struct sim_limits *limits);
int limits_own(struct client *client, unsigned card, struct sim_limits *limits);
bool limits_allow(struct client *client, unsigned card, uint64_t bytes);

/* mig.c */
int mig_request(const struct sim_request *request, uint64_t *value);

/* client.c */
void client_accept(int listener, bool control);
void client_read(struct client *client);
void client_drop(struct client *client);
void clients_sweep(void);
bool client_slot(struct client *client);

/* control.c: answers one line of text; writes the answer into reply. */
int control_run(char *line, char *reply, size_t reply_size);
extern const char *const metric_names[SIM_METRIC_COUNT];

/* timed.c */
int timed_channel(struct client *client, unsigned card);
void timed_forget(struct client *client);
bool timed_advance_all(void);
/* Nanoseconds until the daemon has to look again, or -1 for never. */
int64_t timed_next_ns(void);

#endif
