/* For fill.c and compare.c, after trap.h: jumps out of a fault. */
#define PAGE ((size_t)4096)

static sigjmp_buf jump;
static char *volatile fault_at;
static volatile pid_t fault_by;

static void on_fault(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    fault_at = info->si_addr;
    fault_by = syscall(SYS_gettid);
    siglongjmp(jump, 1);
}

static void handle_faults(void)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
}

static void expect_fault_in(char *page, const char *what)
{
    if (fault_at < page || fault_at >= page + PAGE)
        wrong("%s: fault at %p, the bad page is %p", what, (void *)fault_at, (void *)page);
    if (fault_by != syscall(SYS_gettid))
        wrong("%s: another thread got the fault", what);
}
