/* System calls that a session does without. By them it could get a listening TCP socket that the kernel's rule about
 * ports (Landlock, set by the hub for all that it starts) does not look at: Multipath TCP and SMC sockets take plain TCP connections
 * too, and io_uring makes sockets past any filter of system calls. */
#include "launch.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

enum { PROTOCOL_MPTCP = 262, FAMILY_SMC = 43, I386_SOCKET = 359, I386_SOCKETCALL = 102, IO_URING_SETUP = 425, X32 = 0x40000000 };

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define ANSWER(value) BPF_STMT(BPF_RET | BPF_K, value)
#define REFUSE(error) ANSWER(SECCOMP_RET_ERRNO | (error))
/* Goes on with the next line where equal, else skips `lines`. */
#define IF(value, lines) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (value), 0, (lines))
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define LOAD_ARGUMENT(i) LOAD(args[i])
#else
#define LOAD_ARGUMENT(i) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[i]) + 4)
#endif
#define CHECK_SOCKET \
    LOAD_ARGUMENT(0), IF(FAMILY_SMC, 1), REFUSE(EAFNOSUPPORT), \
    LOAD_ARGUMENT(2), IF(PROTOCOL_MPTCP, 1), REFUSE(EPROTONOSUPPORT), ANSWER(SECCOMP_RET_ALLOW)
enum { CHECK_SOCKET_LINES = 7 };

bool calls_close(void)
{
    struct sock_filter filter[] = {
        LOAD(nr),
#if defined(__x86_64__)
        /* The x32 numbers of the same calls. */
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, ~(unsigned)X32),
#endif
        IF(IO_URING_SETUP, 1), REFUSE(ENOSYS),
#if defined(__x86_64__)
        LOAD(arch),
        IF(AUDIT_ARCH_I386, 4 + CHECK_SOCKET_LINES),
        LOAD(nr),
        IF(I386_SOCKETCALL, 1), REFUSE(ENOSYS), /* its arguments lie where no filter sees them */
        IF(I386_SOCKET, CHECK_SOCKET_LINES + 3 + CHECK_SOCKET_LINES),
        CHECK_SOCKET,
        LOAD(nr),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, ~(unsigned)X32),
#else
        LOAD(nr),
#endif
        IF(SYS_socket, CHECK_SOCKET_LINES),
        CHECK_SOCKET,
        ANSWER(SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) != 0 && errno != EINVAL) {
        complain("cannot filter system calls: %s", strerror(errno));
        return false;
    }
    return true;
}
