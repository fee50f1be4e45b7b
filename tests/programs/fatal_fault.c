/* fatal_fault SIGNAL: a copy over a bad page, without any handler, watched by a debugger.
 *
 * Says of the signal that ended the child which thread it came to, in what object its
 * instruction lies, and what it told: what a core file would show.
 */
#include "pattern.h"
#include <sys/ptrace.h>
#include <sys/user.h>

enum { LEN = 4 << 20, BAD = LEN * 3 / 4 };
static char *const place = (char *)(64ul << 30);

static void be_watched(int signo)
{
    char *to =
        mmap(place, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
             -1, 0);
    char *from = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int file = memfd_create("short", 0);
    MUST(to != MAP_FAILED && from != MAP_FAILED && file >= 0);
    for (int i = 0; i < 5; i++)
        memcpy(to, from, LEN);
    if (signo == SIGSEGV)
        mprotect(to + BAD, PAGE, PROT_READ);
    else if (mmap(to + BAD, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) ==
             MAP_FAILED)
        wrong("mmap of a file: %m");
    memcpy(to, from, LEN);
    wrong("the copy came back");
}

/* Returns the last part of the name of what is mapped there. */
static void object_at(pid_t process, unsigned long address, char *name)
{
    char path[64], line[500];
    snprintf(path, sizeof(path), "/proc/%d/maps", process);
    FILE *maps = fopen(path, "r");
    strcpy(name, "nothing");
    while (maps && fgets(line, sizeof(line), maps)) {
        unsigned long start, end;
        char *slash = strrchr(line, '/');
        if (sscanf(line, "%lx-%lx", &start, &end) == 2 && address >= start && address < end &&
            slash)
            sscanf(slash + 1, "%99s", name);
    }
    fclose(maps);
}

int main(int argc, char **argv)
{
    int signo = argc == 2 ? atoi(argv[1]) : 0, status;
    long options = PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL;
    char name[100] = "nothing";
    siginfo_t info = { 0 };
    pid_t last = 0, child = fork();
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, 0, 0))
            cannot("ptrace is forbidden here");
        raise(SIGSTOP);
        be_watched(signo);
    }
    waitpid(child, &status, 0);
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    ptrace(PTRACE_SETOPTIONS, child, 0, options);
    ptrace(PTRACE_CONT, child, 0, 0);
    for (;;) {
        pid_t thread = waitpid(-1, &status, __WALL);
        int deliver = 0;
        MUST(thread >= 0);
        if (thread == child && !WIFSTOPPED(status))
            break;
        if (!WIFSTOPPED(status))
            continue;
        if (WSTOPSIG(status) == signo) {
            struct user_regs_struct registers;
            ptrace(PTRACE_GETREGS, thread, 0, &registers);
            ptrace(PTRACE_GETSIGINFO, thread, 0, &info);
            object_at(child, registers.rip, name);
            last = thread;
            deliver = signo;
        } else if (WSTOPSIG(status) != SIGTRAP && WSTOPSIG(status) != SIGSTOP) {
            deliver = WSTOPSIG(status);
        }
        ptrace(PTRACE_CONT, thread, 0, deliver);
    }
    printf("ended by signal %d, in %s thread, in %s, code %d, %ld pages from the bad one\n",
           WIFSIGNALED(status) ? WTERMSIG(status) : 0, last == child ? "the calling" : "another",
        name, info.si_code, ((char *)info.si_addr - place - BAD) / PAGE);
    return 0;
}
