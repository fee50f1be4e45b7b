/* Runs a program for which some system calls do not exist, as under gVisor, or on an old kernel.
 *
 * usage: refused [seen] ERRNO CALL[,CALL...] PROGRAM [ARGUMENT...]
 *
 * Calls are numbers. PR_GET_SECCOMP answers that there is no filter, so that the library makes its rare
 * calls and meets the refusal; with "seen" it answers the truth, as in a container.
 */
#include "seccomp.h"

enum { MOST_CALLS = 400 };

int main(int count, char **words)
{
    bool seen = count > 1 && !strcmp(words[1], "seen");
    words += 1 + seen;
    if (count - seen < 4)
        wrong("want ERRNO CALL[,CALL...] PROGRAM");
    struct sock_filter code[2 * MOST_CALLS + 8];
    unsigned short n = 0, calls = 0;
    unsigned refusal = SECCOMP_RET_ERRNO | (atoi(words[0]) & SECCOMP_RET_DATA);
    code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                                             offsetof(struct seccomp_data, nr));
    for (char *word = strtok(words[1], ","); word && calls < MOST_CALLS; word = strtok(NULL, ",")) {
        calls++;
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, atoi(word), 0, 1);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, refusal);
    }
    if (!seen) {
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prctl, 0, 3);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                                                 offsetof(struct seccomp_data, args[0]));
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PR_GET_SECCOMP, 0, 1);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    put_filter(code, n, 0);
    execv(words[2], words + 2);
    wrong("%s: %s", words[2], strerror(errno));
}
