/* Who uses how much, without locks between processes: a process may be killed between any two instructions here and the
 * others go on.
 *
 * A process owns one slot as long as it lives, and only it writes there. To get memory it announces the amount in its slot
 * (pending), fences, then reads the limit and everybody's words:
 *   granted(all) + mine > limit              no room; refused
 *   ... + announced(others) > limit          somebody else may be about to be granted; nobody may be refused for that
 *                                            reason alone, so all step back (WAITS) and the lowest slot announces again,
 *                                            while those above wait for it
 *   else                                     granted: added to `used`, then the announcement is taken back
 * Both of two racers see each other's announcement or grant, because each announces before it reads; so the sum of grants
 * never passes the limit, and where one fits, the lower slot gets it.
 */
#include "common.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_PATH "/run/gpuspawner/usage/usage"
#define SPINS 200
#ifndef WAIT_NS /* less where a test makes it wait at each call */
#define WAIT_NS INT64_C(2000000000)
#endif
#define RECLAIM_EVERY_NS INT64_C(100000000)
#define KEEPER_FD 200

static struct abi_usage_file *_Atomic file;
static _Atomic int slot = -1;
static uint64_t identity;
static int keeper = -1; /* the usage file, open as long as we live: by its locks others know that we do */
static pthread_mutex_t attach_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t card_locks[ABI_CARDS] = {[0 ... ABI_CARDS - 1] = PTHREAD_MUTEX_INITIALIZER}; /* between threads */

static const char *path(void) { return path_of("GPUSPAWNER_USAGE", DEFAULT_PATH); }

static bool refuse(const char *why)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    say_once(&said, "no card may be used: usage file %s: %s", path(), why);
    return false;
}

/* Processes of two containers share the file and not their process ids: who cannot see a process sees by the lock on its
 * slot's byte whether it lives. The kernel takes the lock back when the last descriptor of this opening is closed; a
 * program that closes descriptors it does not know loses it, and with it its connection to the driver. */
static bool is_keeper(int fd)
{
    struct statx here, there; /* stat and fstat are symbols of glibc 2.33 */
    return fd >= 0 && statx(fd, "", AT_EMPTY_PATH, STATX_INO, &here) == 0 &&
           statx(AT_FDCWD, path(), 0, STATX_INO, &there) == 0 && here.stx_ino == there.stx_ino &&
           here.stx_dev_major == there.stx_dev_major && here.stx_dev_minor == there.stx_dev_minor;
}

static bool open_keeper(void)
{
    if (is_keeper(keeper))
        return true;
    int fd = open(path(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    keeper = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, KEEPER_FD) : -1; /* out of the way of programs that count on low ones */
    if (keeper >= 0)
        close(fd);
    else
        keeper = fd;
    return keeper >= 0;
}

static int set_lock(int index, short type)
{
    struct flock byte = {.l_type = type, .l_whence = SEEK_SET, .l_start = index, .l_len = 1};
    return fcntl(keeper, F_OFD_SETLK, &byte);
}

/* False: somebody else who lives has it. Where there can be no lock, the process id alone decides. */
static bool lock_slot(int index)
{
    return !open_keeper() || set_lock(index, F_WRLCK) == 0 || (errno != EAGAIN && errno != EACCES);
}

static void unlock_slot(int index)
{
    if (is_keeper(keeper))
        (void)set_lock(index, F_UNLCK);
}

/* A child made by fork() has none of its parent's memory on the card: it starts without a slot. */
static void after_fork(void)
{
    if (is_keeper(keeper))
        close(keeper); /* the parent's lock is the parent's alone */
    keeper = -1;
    limits_after_fork();
    shim_after_fork();
    pthread_mutex_init(&attach_lock, NULL);
    for (int i = 0; i < ABI_CARDS; i++)
        pthread_mutex_init(&card_locks[i], NULL);
    atomic_store_explicit(&slot, -1, memory_order_relaxed);
}

struct life {
    char state;
    int threads;
    uint64_t start;
};

static bool read_life(const char *name, struct life *life)
{
    char text[512];
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        close(fd);
    if (length <= 0)
        return false;
    text[length] = '\0';
    const char *after = strrchr(text, ')'); /* the name may hold anything */
    unsigned long long start;
    if (after == NULL || sscanf(after + 1,
                                " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %d %*d %llu",
                                &life->state, &life->threads, &start) != 3)
        return false;
    life->start = start;
    return true;
}

static uint64_t own_identity(void)
{
    struct life life = {0};
    uint64_t start = read_life("/proc/self/stat", &life) ? life.start : 0;
    return (start << ABI_OWNER_START_SHIFT) | ((uint64_t)getpid() & ABI_OWNER_PID_MASK);
}

/* In doubt alive: memory is rather kept than given twice. A dead process whose parent has not looked yet holds nothing, but
 * one whose first thread alone ended does. */
static bool is_dead(uint64_t owner)
{
    pid_t pid = (pid_t)(owner & ABI_OWNER_PID_MASK);
    uint64_t start = owner >> ABI_OWNER_START_SHIFT;
    if (pid <= 0 || (kill(pid, 0) != 0 && errno == ESRCH))
        return true;
    char name[64];
    struct life life;
    snprintf(name, sizeof name, "/proc/%d/stat", (int)pid);
    if (!read_life(name, &life))
        return kill(pid, 0) != 0 && errno == ESRCH;
    return (start != 0 && life.start != start) || ((life.state == 'Z' || life.state == 'X') && life.threads <= 1);
}

static void empty_slot(struct abi_usage_file *usage, int index)
{
    for (int card = 0; card < ABI_CARDS; card++) {
        atomic_store_explicit(&usage->used[card][index], 0, memory_order_relaxed);
        atomic_store_explicit(&usage->pending[card][index], 0, memory_order_relaxed);
    }
    atomic_thread_fence(memory_order_release);
}

static int slots_high(struct abi_usage_file *usage)
{
    uint32_t high = atomic_load_explicit(&usage->high, memory_order_acquire);
    return high < ABI_SLOTS ? (int)high : ABI_SLOTS;
}

/* Whoever empties a slot first puts its own name on it, marked, so that no two empty the same one and a third can finish if
 * the first dies over it. */
static bool reclaim_slot(struct abi_usage_file *usage, int index, uint64_t self)
{
    uint64_t owner = atomic_load_explicit(&usage->owners[index], memory_order_acquire);
    if (owner == 0 || owner == self || owner == (self | ABI_OWNER_RECLAIMING))
        return false;
    if (!is_dead(owner & ~ABI_OWNER_RECLAIMING) || !lock_slot(index))
        return false;
    if (!atomic_compare_exchange_strong(&usage->owners[index], &owner, self | ABI_OWNER_RECLAIMING)) {
        if (owner != (self | ABI_OWNER_RECLAIMING)) /* else another thread of ours needs the lock */
            unlock_slot(index);
        return false;
    }
    empty_slot(usage, index);
    atomic_store_explicit(&usage->owners[index], 0, memory_order_release);
    unlock_slot(index);
    return true;
}

static bool reclaim_all(struct abi_usage_file *usage)
{
    bool any = false;
    uint64_t self = own_identity();
    for (int i = 0; i < slots_high(usage); i++)
        any |= reclaim_slot(usage, i, self);
    return any;
}

static struct abi_usage_file *map_file(void)
{
    struct abi_usage_file *usage = atomic_load_explicit(&file, memory_order_acquire);
    if (usage != NULL)
        return usage;
    pthread_mutex_lock(&attach_lock);
    static bool registered;
    if (!registered)
        registered = pthread_atfork(NULL, NULL, after_fork) == 0;
    usage = atomic_load_explicit(&file, memory_order_acquire);
    int fd = usage == NULL ? open(path(), O_RDWR | O_CLOEXEC | O_NOFOLLOW) : -1;
    if (usage == NULL && fd < 0) {
        refuse(strerror(errno));
    } else if (usage == NULL) {
        void *view = MAP_FAILED;
        const char *problem;
        if (is_file_of(fd, ABI_USAGE_SIZE))
            view = mmap(NULL, ABI_USAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (view == MAP_FAILED) {
            refuse("not a file of 471040 bytes");
        } else if ((problem = wrong_header(view, ABI_USAGE_MAGIC, ((struct abi_usage_file *)view)->version)) != NULL) {
            munmap(view, ABI_USAGE_SIZE);
            refuse(problem);
        } else {
            usage = view;
            atomic_store_explicit(&file, usage, memory_order_release);
        }
        close(fd);
    }
    pthread_mutex_unlock(&attach_lock);
    return usage;
}

static void raise_high(struct abi_usage_file *usage, int index)
{
    uint32_t high = atomic_load(&usage->high);
    while (high < (uint32_t)index + 1 && !atomic_compare_exchange_weak(&usage->high, &high, (uint32_t)index + 1))
        ;
}

static int claim_slot(struct abi_usage_file *usage)
{
    identity = own_identity();
    int high = slots_high(usage);
    for (int i = 0; i < high; i++) { /* exec keeps pid and start time: what the old program held is gone */
        if (atomic_load_explicit(&usage->owners[i], memory_order_acquire) == identity && lock_slot(i)) {
            empty_slot(usage, i);
            return i;
        }
    }
    for (int attempt = 0; attempt < 2; attempt++) {
        for (int i = 0; i < ABI_SLOTS; i++) {
            uint64_t nobody = 0;
            if (atomic_load_explicit(&usage->owners[i], memory_order_relaxed) != 0)
                continue;
            if (!lock_slot(i))
                continue;
            raise_high(usage, i); /* first, so that no owner lies where nobody looks, even if we are killed here */
            if (atomic_compare_exchange_strong(&usage->owners[i], &nobody, identity))
                return i;
            unlock_slot(i);
        }
        reclaim_all(usage);
    }
    return -1;
}

/* The usage file and this process's slot in it, or NULL after a line on stderr. */
static struct abi_usage_file *attach(void)
{
    struct abi_usage_file *usage = map_file();
    if (usage == NULL || atomic_load_explicit(&slot, memory_order_acquire) >= 0)
        return usage;
    pthread_mutex_lock(&attach_lock);
    if (atomic_load_explicit(&slot, memory_order_relaxed) < 0) {
        int got = claim_slot(usage);
        if (got < 0) {
            refuse("1024 processes use it already");
            usage = NULL;
        }
        atomic_store_explicit(&slot, got, memory_order_release);
    }
    pthread_mutex_unlock(&attach_lock);
    return usage;
}

bool accounts_ready(void) { return limits_ready() && attach() != NULL; }

static uint64_t add(uint64_t a, uint64_t b) { return a + b < a ? UINT64_MAX : a + b; }

static uint64_t sum_used(struct abi_usage_file *usage, int card, int high)
{
    uint64_t sum = 0;
    for (int i = 0; i < high; i++)
        sum = add(sum, atomic_load_explicit(&usage->used[card][i], memory_order_relaxed));
    return sum;
}

static int64_t now_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Waits until nobody in a lower slot wants memory of the card. False: somebody there is stopped, not dead. */
static bool wait_for_lower(struct abi_usage_file *usage, int card, int mine)
{
    int64_t since = 0;
    for (int spin = 0;; spin++) {
        int lower = 0;
        while (lower < mine && atomic_load_explicit(&usage->pending[card][lower], memory_order_acquire) == 0)
            lower++;
        if (lower == mine)
            return true;
        if (spin < SPINS)
            continue;
        int64_t now = now_ns(CLOCK_MONOTONIC);
        if (since == 0)
            since = now;
        if (spin % SPINS == 0)
            (void)reclaim_slot(usage, lower, identity);
        if (now - since > WAIT_NS)
            return false;
        sched_yield();
    }
}

/* Others' announcements stand in the way. One of a dead process goes; for one of a process that is stopped we wait a while
 * only. */
static bool worth_waiting(struct abi_usage_file *usage, int64_t *since)
{
    int64_t now = now_ns(CLOCK_MONOTONIC);
    if (*since == 0)
        *since = now;
    (void)reclaim_all(usage);
    sched_yield();
    return now - *since <= WAIT_NS;
}

static bool reserve_in_slot(struct abi_usage_file *usage, int card, uint64_t bytes, int mine)
{
    _Atomic uint64_t *pending = &usage->pending[card][mine];
    bool reclaimed = false, granted = false;
    int64_t since = 0;
    for (int turn = 1;; turn++) {
        atomic_store_explicit(pending, bytes << 1, memory_order_relaxed);
        atomic_thread_fence(memory_order_seq_cst);
        uint64_t limit = limits_room(card), announced = 0;
        int high = slots_high(usage);
        for (int i = 0; i < high; i++) {
            uint64_t other = i == mine ? 0 : atomic_load_explicit(&usage->pending[card][i], memory_order_acquire);
            if (other != 0 && (other & ABI_PENDING_WAITS) == 0)
                announced = add(announced, other >> 1);
        }
        /* After the announcements: an amount that moved on to `used` meanwhile is counted twice, never not at all. */
        uint64_t wanted = add(sum_used(usage, card, high), bytes);
        if (wanted > limit) {
            if (reclaimed)
                break;
            (void)reclaim_all(usage); /* and look again, since others clear up, too */
            reclaimed = true;
            continue;
        }
        if (add(wanted, announced) <= limit) {
            atomic_fetch_add_explicit(&usage->used[card][mine], bytes, memory_order_seq_cst);
            granted = true;
            break;
        }
        atomic_store_explicit(pending, bytes << 1 | ABI_PENDING_WAITS, memory_order_seq_cst);
        if (!wait_for_lower(usage, card, mine) || (turn % SPINS == 0 && !worth_waiting(usage, &since)))
            break;
    }
    atomic_store_explicit(pending, 0, memory_order_release);
    return granted;
}

static void name_card(struct abi_usage_file *usage, int card)
{
    uint8_t uuid[16];
    limits_uuid(card, uuid);
    if (memcmp(usage->uuids[card], uuid, 16) != 0)
        memcpy(usage->uuids[card], uuid, 16); /* everybody writes the same */
}

bool accounts_reserve(int card, uint64_t bytes)
{
    if (card == NO_CARD || bytes > UINT64_MAX >> 2 || !limits_ready())
        return false;
    struct abi_usage_file *usage = attach();
    if (usage == NULL)
        return false;
    if (bytes == 0)
        return true;
    pthread_mutex_lock(&card_locks[card]);
    name_card(usage, card);
    bool granted = reserve_in_slot(usage, card, bytes, atomic_load_explicit(&slot, memory_order_relaxed));
    pthread_mutex_unlock(&card_locks[card]);
    return granted;
}

void accounts_add(int card, uint64_t bytes)
{
    struct abi_usage_file *usage = card == NO_CARD || bytes == 0 ? NULL : attach();
    if (usage != NULL)
        atomic_fetch_add(&usage->used[card][atomic_load_explicit(&slot, memory_order_relaxed)], bytes);
}

void accounts_release(int card, uint64_t bytes)
{
    struct abi_usage_file *usage = card == NO_CARD || bytes == 0 ? NULL : attach();
    if (usage == NULL)
        return;
    _Atomic uint64_t *used = &usage->used[card][atomic_load_explicit(&slot, memory_order_relaxed)];
    uint64_t had = atomic_load_explicit(used, memory_order_relaxed);
    while (!atomic_compare_exchange_weak(used, &had, had > bytes ? had - bytes : 0))
        ;
}

struct abi_compute *accounts_compute(int card)
{
    struct abi_usage_file *usage = card == NO_CARD ? NULL : map_file();
    return usage != NULL ? &usage->compute[card] : NULL;
}

void accounts_reclaim(void)
{
    struct abi_usage_file *usage = map_file();
    if (usage != NULL)
        reclaim_all(usage);
}

/* Whether somebody else's bytes count may be a dead one's: looked at now and then only, since looking takes system calls. */
static void reclaim_sometimes(struct abi_usage_file *usage, int card, int high)
{
    static _Atomic int64_t last;
    int mine = atomic_load_explicit(&slot, memory_order_relaxed), others = 0;
    for (int i = 0; i < high && others == 0; i++)
        others += i != mine && atomic_load_explicit(&usage->used[card][i], memory_order_relaxed) != 0;
    if (others == 0)
        return;
    int64_t now = now_ns(CLOCK_MONOTONIC_COARSE), before = atomic_load_explicit(&last, memory_order_relaxed);
    if (now - before > RECLAIM_EVERY_NS && atomic_compare_exchange_strong(&last, &before, now))
        reclaim_all(usage);
}

uint64_t accounts_used(int card)
{
    struct abi_usage_file *usage = map_file();
    if (usage == NULL || card == NO_CARD)
        return UINT64_MAX;
    int high = slots_high(usage);
    reclaim_sometimes(usage, card, high);
    return sum_used(usage, card, high);
}

unsigned accounts_list(int card, struct account *rows, unsigned most)
{
    unsigned count = 0;
    struct abi_usage_file *usage = card == NO_CARD ? NULL : map_file();
    if (usage == NULL)
        return 0;
    reclaim_all(usage);
    for (int i = 0; i < slots_high(usage); i++) {
        uint64_t owner = atomic_load_explicit(&usage->owners[i], memory_order_acquire);
        uint64_t bytes = atomic_load_explicit(&usage->used[card][i], memory_order_relaxed);
        if (owner == 0 || (owner & ABI_OWNER_RECLAIMING) != 0 || bytes == 0)
            continue;
        if (count < most)
            rows[count] = (struct account){(uint32_t)(owner & ABI_OWNER_PID_MASK), bytes};
        count++;
    }
    return count;
}
