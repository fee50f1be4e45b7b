/* For fill.c and compare.c, after trap.h: jumps out of a fault, and scenes that both have. */
#define PAGE ((size_t)4096)

static sigjmp_buf jump;
static char *volatile fault_at;
static volatile pid_t fault_by;

static void on_fault(int number, siginfo_t *info, void *context)
{
    fault_at = info->si_addr;
    fault_by = syscall(SYS_gettid);
    siglongjmp(jump, 1);
}

static void handle_faults(void)
{
    handle_info(SIGSEGV, on_fault);
}

static void expect_fault_in(char *page, const char *what)
{
    if (fault_at < page || fault_at >= page + PAGE)
        wrong("%s: fault at %p, the bad page is %p", what, (void *)fault_at, (void *)page);
    if (fault_by != syscall(SYS_gettid))
        wrong("%s: another thread got the fault", what);
}

/* Of every length class, by chance too; the program's own. */
static void lengths_from(uint64_t seed);

static void lengths(void)
{
    lengths_from(strtoul(scene_argument(0, "1"), NULL, 0));
}

static void *thread(void *seed)
{
    lengths_from((uintptr_t)seed);
    return NULL;
}

static void threads(void)
{
    in_threads(4, thread);
}
