/*
 * faults TROUBLE REACTION [PLACE SIZE]: copies over pages that fault.
 *
 * TROUBLE is what is wrong with the page (see the table), REACTION what the program does:
 *
 *   repair   the handler mends the page, makes a large copy of its own, and returns
 *   jump     the handler leaves by siglongjmp; no worker may write to the destination any more
 *   exit     the handler calls exit(42)
 *   none     no handler
 *   other    a handler, but for the other one of SIGSEGV and SIGBUS
 *   ignored  SIG_IGN, which does not hold for a fault
 *   blocked  a handler, but the signals are blocked, which kills the process
 *
 * PLACE is start, middle, end, all (three), or every (page of the smaller copy). Prints one line for
 * each copy with what the handler saw, to be compared with a run without the library. The first two
 * reactions go through all places and both sizes where none is given. After each of them two more
 * copies are made between sound pages.
 */
#include "pattern.h"
#include "uffd.h"

enum { SMALL = 1 << 20, LARGE = 8 << 20, ASIDE = SMALL, MOST_SPOTS = SMALL / PAGE + 1 };
enum place { START, MIDDLE, END, ALL_THREE, EVERY_PAGE, PLACES };
static const char *const places[PLACES] = {"start", "middle", "end", "all", "every"};

struct spot {
    char *page;
    int file; /* behind the page, where the trouble is with a file */
};

/* How a page is spoiled, how a handler mends it, and what that needs beforehand. */
struct trouble {
    const char *name;
    unsigned side;
    void (*prepare)(void);      /* before the first copy, hence before there are workers */
    void (*prepare_late)(void); /* after it */
    void (*spoil)(struct spot *);
    void (*mend)(struct spot *);
};

static const struct trouble *trouble;
static struct side dst, src, aside_dst, aside_src;
static struct spot spots[MOST_SPOTS];
static int spots_used, key;

/* What the handler saw. */
static volatile sig_atomic_t faults, last_signal, last_code, in_other_thread, elsewhere;
static volatile uint64_t blocked_signals;
static volatile int leave_by_jump, leave_by_exit;
static sigjmp_buf before_copy;
static pid_t caller;

static void must(int right, const char *what)
{
    if (!right)
        fail("%s: %m", what);
}

/* The side that the bad pages are on. */
static const struct side *troubled(void)
{
    return trouble->side == SOURCE ? &src : &dst;
}

/* What belongs on the page; a handler may call this. */
static void write_page(const char *page, byte *to)
{
    size_t first = (byte *)page - troubled()->base;
    for (size_t at = 0; at < PAGE; at++)
        to[at] = laid_down(troubled(), trouble->side, first + at);
}

static void unmap(struct spot *spot)
{
    must(!munmap(spot->page, PAGE), "munmap");
}

static void map_page(struct spot *spot, int flags)
{
    must(mmap(spot->page, PAGE, PROT_READ | PROT_WRITE, flags | MAP_FIXED, spot->file, 0) ==
             spot->page,
         "mmap");
    write_page(spot->page, (byte *)spot->page);
}

static void map_again(struct spot *spot)
{
    map_page(spot, MAP_PRIVATE | MAP_ANONYMOUS);
}

static void make_read_only(struct spot *spot)
{
    must(!mprotect(spot->page, PAGE, PROT_READ), "mprotect");
}

static void forbid(struct spot *spot)
{
    must(!mprotect(spot->page, PAGE, PROT_NONE), "mprotect");
}

static void allow(struct spot *spot)
{
    must(!mprotect(spot->page, PAGE, PROT_READ | PROT_WRITE), "mprotect");
}

static void truncate_file(struct spot *spot)
{
    spot->file = memfd_create("truncated", MFD_CLOEXEC);
    must(spot->file >= 0 && !ftruncate(spot->file, PAGE), "memfd_create");
    map_page(spot, MAP_SHARED);
    must(!ftruncate(spot->file, 0), "ftruncate");
}

static void extend_file(struct spot *spot)
{
    must(!ftruncate(spot->file, PAGE), "ftruncate");
    write_page(spot->page, (byte *)spot->page);
}

static void lose_page(struct spot *spot)
{
    lose_pages(spot->page, PAGE);
}

static void supply(struct spot *spot)
{
    static unsigned char sound[PAGE];
    write_page(spot->page, sound);
    must(!supply_page((uintptr_t)spot->page, sound), "UFFDIO_COPY");
}

static void *supply_missing_pages(void *unused)
{
    for (;;) {
        struct spot spot = {.page = (char *)page_asked_for(-1)};
        sleep_ms(1); /* a thread that waits for the page shall really wait */
        if (spot.page)
            supply(&spot);
    }
    return unused;
}

static void watch_missing_pages(int flags)
{
    pthread_t monitor;
    open_userfault(flags, 0);
    must(!pthread_create(&monitor, NULL, supply_missing_pages, NULL), "pthread_create");
}

static void from_monitor(void)
{
    watch_missing_pages(0);
}

/* The kernel then reports only faults of user code; its own accesses fail instead. */
static void from_monitor_for_users(void)
{
    watch_missing_pages(UFFD_USER_MODE_ONLY);
}

static void by_sigbus(void)
{
    open_userfault(0, UFFD_FEATURE_SIGBUS);
}

/* Workers that exist already do not get the right to a new key. */
static void allocate_key(void)
{
    key = pkey_alloc(0, 0);
    if (key < 0)
        cannot_be_shown("no memory protection keys here");
}

/* A gap below the key that is used: code that looks at the lowest key only is misled. */
static void allocate_second_key(void)
{
    int first = pkey_alloc(0, 0);
    allocate_key();
    pkey_free(first);
}

/* Workers keep the right that the caller gives up here. */
static void deny_access(void)
{
    must(!pkey_set(key, PKEY_DISABLE_ACCESS), "pkey_set");
}

static void deny_writing(void)
{
    must(!pkey_set(key, PKEY_DISABLE_WRITE), "pkey_set");
}

static void give_key(struct spot *spot)
{
    must(!pkey_mprotect(spot->page, PAGE, PROT_READ | PROT_WRITE, key), "pkey_mprotect");
}

static void take_key(struct spot *spot)
{
    must(!pkey_mprotect(spot->page, PAGE, PROT_READ | PROT_WRITE, 0), "pkey_mprotect");
}

static const struct trouble troubles[] = {
    {"unmapped-source", SOURCE, NULL, NULL, unmap, map_again},
    {"unmapped-destination", DESTINATION, NULL, NULL, unmap, map_again},
    {"read-only-destination", DESTINATION, NULL, NULL, make_read_only, allow},
    {"forbidden-source", SOURCE, NULL, NULL, forbid, allow},
    {"forbidden-destination", DESTINATION, NULL, NULL, forbid, allow},
    {"truncated-source", SOURCE, NULL, NULL, truncate_file, extend_file},
    {"truncated-destination", DESTINATION, NULL, NULL, truncate_file, extend_file},
    {"missing-source", SOURCE, from_monitor, NULL, lose_page, NULL},
    {"missing-destination", DESTINATION, from_monitor, NULL, lose_page, NULL},
    {"missing-source-user-mode", SOURCE, from_monitor_for_users, NULL, lose_page, NULL},
    {"missing-destination-user-mode", DESTINATION, from_monitor_for_users, NULL, lose_page, NULL},
    {"missing-source-sigbus", SOURCE, by_sigbus, NULL, lose_page, supply},
    {"missing-destination-sigbus", DESTINATION, by_sigbus, NULL, lose_page, supply},
    {"key-of-caller-source", SOURCE, NULL, allocate_key, give_key, NULL},
    {"key-of-caller-destination", DESTINATION, NULL, allocate_key, give_key, NULL},
    {"key-of-others-source", SOURCE, allocate_key, deny_access, give_key, take_key},
    {"second-key-of-others-source", SOURCE, allocate_second_key, deny_access, give_key, take_key},
    {"key-of-others-destination", DESTINATION, allocate_key, deny_access, give_key, take_key},
    {"key-for-reading-destination", DESTINATION, allocate_key, deny_writing, give_key, take_key},
};

static void on_fault(int signo, siginfo_t *info, void *context)
{
    char *page = (char *)((uintptr_t)info->si_addr & -PAGE);
    struct spot *spot = NULL;
    faults++;
    last_signal = signo;
    last_code = info->si_code;
    in_other_thread |= gettid() != caller;
    blocked_signals = *(uint64_t *)&((ucontext_t *)context)->uc_sigmask;
    for (int i = 0; i < spots_used; i++)
        if (spots[i].page == page)
            spot = &spots[i];
    elsewhere |= !spot;
    if (leave_by_jump)
        siglongjmp(before_copy, 1);
    if (leave_by_exit)
        exit(42);
    if (!spot || !trouble->mend)
        fail("signal %d, code %d at %p, which was sound", signo, info->si_code, info->si_addr);
    trouble->mend(spot);
    memcpy((void *)aside_dst.base, (void *)aside_src.base, ASIDE);
}

static void install_handlers(const char *reaction)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    bool sigbus = strstr(trouble->name, "truncated") || strstr(trouble->name, "sigbus");
    leave_by_jump = !strcmp(reaction, "jump");
    leave_by_exit = !strcmp(reaction, "exit");
    if (!strcmp(reaction, "none"))
        return;
    if (!strcmp(reaction, "ignored"))
        action.sa_handler = SIG_IGN;
    if (sigbus || strcmp(reaction, "other"))
        must(!sigaction(SIGSEGV, &action, NULL), "sigaction");
    if (!sigbus || strcmp(reaction, "other"))
        must(!sigaction(SIGBUS, &action, NULL), "sigaction");
    if (!strcmp(reaction, "blocked")) {
        sigset_t both;
        sigemptyset(&both);
        sigaddset(&both, SIGSEGV);
        sigaddset(&both, SIGBUS);
        sigprocmask(SIG_BLOCK, &both, NULL);
    }
}

/* Far below where the kernel puts mappings of its own choice: what is unmapped here must not be
 * given to another mapping. */
static struct side low_pages(size_t gigabyte, size_t from, size_t len)
{
    size_t size = (from + len + PAGE - 1) / PAGE * PAGE;
    void *base = mmap((void *)(gigabyte << 30), size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    must(base != MAP_FAILED, "mmap");
    return (struct side){base, size, from, len};
}

static void add_spot(size_t at)
{
    spots[spots_used++] = (struct spot){(char *)troubled()->base + at / PAGE * PAGE, -1};
}

static void find_spots(enum place place)
{
    size_t first = troubled()->from, len = troubled()->len, last = first + len - 1;
    spots_used = 0;
    if (place == START || place == ALL_THREE)
        add_spot(first);
    if (place == MIDDLE || place == ALL_THREE)
        add_spot(first + len / 2);
    if (place == END || place == ALL_THREE)
        add_spot(last);
    for (size_t at = 0; place == EVERY_PAGE && at <= last; at += PAGE)
        add_spot(at);
}

static void one_case(enum place place, size_t len, const struct operation *operation)
{
    volatile int jumped = 0;
    char what[160];
    snprintf(what, sizeof(what), "%s, %s, %zu bytes, %s", trouble->name, places[place], len,
             operation->name);
    dst = low_pages(64, 24, len);
    src = low_pages(80, 40, len);
    lay_down(&dst, DESTINATION);
    lay_down(&src, SOURCE);
    lay_down(&aside_dst, DESTINATION);
    find_spots(place);
    for (int i = 0; i < spots_used; i++)
        trouble->spoil(&spots[i]);
    faults = last_signal = last_code = in_other_thread = elsewhere = 0;
    blocked_signals = 0;
    if (sigsetjmp(before_copy, 1)) {
        jumped = 1;
        for (int i = 0; i < spots_used; i++)
            trouble->mend(&spots[i]);
        expect_no_writer(dst.base, dst.size, 256, what);
    } else {
        operation->call((void *)(dst.base + dst.from), (void *)(src.base + src.from), len);
    }
    printf("%s: %d faults, signal %d, code %d, in %s thread, %s, blocked %#lx, %s\n", what,
           faults, last_signal, last_code, in_other_thread ? "another" : "the calling",
           elsewhere ? "elsewhere" : "on the bad page", blocked_signals,
           jumped ? "jumped" : "came back");
    fflush(stdout);
    if (!jumped)
        expect_copied(&dst, &src, what);
    if (faults && !jumped)
        expect_copied(&aside_dst, &aside_src, "copy in the handler");
    for (int i = 0; i < 2; i++) {
        lay_down(&aside_dst, DESTINATION);
        operation->call((void *)aside_dst.base, (void *)aside_src.base, ASIDE);
        expect_copied(&aside_dst, &aside_src, "copy after a fault");
    }
    for (int i = 0; i < spots_used; i++)
        close(spots[i].file);
    munmap((void *)dst.base, dst.size);
    munmap((void *)src.base, src.size);
}

int main(int argc, char **argv)
{
    int number = 0;
    for (size_t i = 0; argc > 2 && i < sizeof(troubles) / sizeof(troubles[0]); i++)
        if (!strcmp(troubles[i].name, argv[1]))
            trouble = &troubles[i];
    if (!trouble)
        fail("usage: faults TROUBLE REACTION [PLACE SIZE]");
    caller = gettid();
    if (trouble->prepare)
        trouble->prepare();
    /* This copy brings the workers up. */
    aside_dst = (struct side){pages_between_guards(ASIDE), ASIDE, 0, ASIDE};
    aside_src = (struct side){pages_between_guards(ASIDE), ASIDE, 0, ASIDE};
    lay_down(&aside_src, SOURCE);
    memcpy((void *)aside_dst.base, (void *)aside_src.base, ASIDE);
    sleep_ms(2);
    if (trouble->prepare_late)
        trouble->prepare_late();
    install_handlers(argv[2]);
    for (int place = 0; place < PLACES; place++) {
        if (argc == 3)
            one_case(place, SMALL, &operations[number++ % OPERATIONS]);
        if (argc == 3 && place != EVERY_PAGE)
            one_case(place, LARGE, &operations[number++ % OPERATIONS]);
        if (argc == 5 && !strcmp(places[place], argv[3]))
            one_case(place, strtoul(argv[4], NULL, 0), &operations[0]);
    }
    return 0;
}
