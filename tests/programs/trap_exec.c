/* Executes itself again and again while other threads copy, from the main thread and from another
 * one in turn. Each new program must be alone in its process: a worker outside of the thread group
 * would live on.
 */
#include "trap.h"

static char left[16];

static void *exec_self(void *nothing)
{
    sleep_ms(3);
    execl("/proc/self/exe", "trap_exec", left, (char *)NULL);
    wrong("exec: %s", strerror(errno));
    return nothing;
}

int main(int count, char **words)
{
    int generations = count > 1 ? atoi(words[1]) : rounds(30);
    pthread_t threads[2];
    if (count_threads() != 1)
        wrong("%d threads right after exec", count_threads());
    if (generations == 0) {
        copy_once(8 * MIB, 1, "last generation");
        return 0;
    }
    snprintf(left, sizeof left, "%d", generations - 1);
    start_copiers(threads, 2, 512 * KIB);
    if (generations % 2)
        exec_self(NULL);
    start_thread(exec_self, NULL);
    for (;;)
        pause();
}
