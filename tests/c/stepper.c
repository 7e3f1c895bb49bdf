/* stepper USAGE N PROGRAM ARGUMENT...: follows a program by single instructions between its first two SIGSTOPs and halts it
 * right after the N-th change that it makes to the usage file: the state in which a kill at that moment leaves the file. Says
 * "halted" then, waits for a line, ends the program by SIGKILL and says "killed". If there are fewer changes than N, it lets
 * the program run on to its end and says "ended STATUS CHANGES INSTRUCTIONS". */
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "abi.h"

#define SLOTS 16 /* as many processes take part at most */

struct watched {
    char header[512];
    uint64_t owners[SLOTS], used[ABI_CARDS][SLOTS], pending[ABI_CARDS][SLOTS];
};

static void look(const struct abi_usage_file *usage, struct watched *now)
{
    memcpy(now->header, usage, sizeof now->header);
    memcpy(now->owners, (const void *)usage->owners, sizeof now->owners);
    for (int card = 0; card < ABI_CARDS; card++) {
        memcpy(now->used[card], (const void *)usage->used[card], sizeof now->used[card]);
        memcpy(now->pending[card], (const void *)usage->pending[card], sizeof now->pending[card]);
    }
}

static void say(const char *line)
{
    puts(line);
    fflush(stdout);
}

static int fail(const char *what)
{
    perror(what);
    return 2;
}

int main(int count, char **words)
{
    if (count < 4)
        return 2;
    int fd = open(words[1], O_RDONLY | O_CLOEXEC);
    const struct abi_usage_file *usage = mmap(NULL, ABI_USAGE_SIZE, PROT_READ, MAP_SHARED, fd, 0);
    if (usage == MAP_FAILED)
        return fail(words[1]);
    pid_t pid = fork();
    if (pid == 0) {
        setenv("STEPPER", "1", 1);
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
            _exit(77);
        execv(words[3], words + 3);
        _exit(127);
    }
    int status, stops = 0;
    long wanted = strtol(words[2], NULL, 10), changes = 0, instructions = 0;
    static struct watched before, now;
    while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
        bool marked = WSTOPSIG(status) == SIGSTOP;
        stops += marked;
        if (stops == 1 && marked)
            look(usage, &before);
        if (stops != 1) { /* before and after the phase it runs freely */
            ptrace(PTRACE_CONT, pid, NULL, WSTOPSIG(status) == SIGTRAP || marked ? 0 : WSTOPSIG(status));
            continue;
        }
        look(usage, &now);
        if (memcmp(&before, &now, sizeof now) != 0 && ++changes == wanted) {
            char line[16];
            say("halted");
            bool told = fgets(line, sizeof line, stdin) != NULL;
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            say("killed");
            return told ? 0 : 1;
        }
        before = now;
        instructions++;
        ptrace(PTRACE_SINGLESTEP, pid, NULL, WSTOPSIG(status) == SIGTRAP || marked ? 0 : WSTOPSIG(status));
    }
    printf("ended %d %ld %ld\n", WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), changes, instructions);
    return 0;
}
