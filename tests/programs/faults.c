/* faults TROUBLE REACTION [PLACE SIZE]: copies over pages that fault.
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

/* A defect of a page, and its preparation. */
struct trouble {
    const char *name;
    unsigned side;
    enum { UNMAPPED, PROTECTED, TRUNCATED, MISSING, WITH_KEY } kind;
    int value;                  /* a protection; for a key, the rights that the caller has not */
    void (*prepare)(void);      /* before the first copy, hence before there are workers */
    void (*prepare_late)(void); /* after it */
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

/* Returns the side with the bad pages. */
static const struct side *troubled(void)
{
    return trouble->side == SOURCE ? &src : &dst;
}

/* Writes the page's contents; a handler may call this. */
static void write_page(const char *page, byte *to)
{
    size_t first = (byte *)page - troubled()->base;
    for (size_t at = 0; at < PAGE; at++)
        to[at] = laid_down(troubled(), trouble->side, first + at);
}

static void map_page(struct spot *spot, int flags)
{
    MUST(mmap(spot->page, PAGE, PROT_READ | PROT_WRITE, flags | MAP_FIXED, spot->file, 0) ==
         spot->page);
    write_page(spot->page, (byte *)spot->page);
}

static void supply(struct spot *spot)
{
    static unsigned char sound[PAGE];
    write_page(spot->page, sound);
    MUST(!supply_page((uintptr_t)spot->page, sound));
}

static void spoil(struct spot *spot)
{
    switch (trouble->kind) {
    case UNMAPPED: MUST(!munmap(spot->page, PAGE)); break;
    case PROTECTED: MUST(!mprotect(spot->page, PAGE, trouble->value)); break;
    case MISSING: lose_pages(spot->page, PAGE); break;
    case WITH_KEY: MUST(!pkey_mprotect(spot->page, PAGE, PROT_READ | PROT_WRITE, key)); break;
    case TRUNCATED:
        spot->file = memfd_create("truncated", MFD_CLOEXEC);
        MUST(spot->file >= 0 && !ftruncate(spot->file, PAGE));
        map_page(spot, MAP_SHARED);
        MUST(!ftruncate(spot->file, 0));
    }
}

static void mend(struct spot *spot)
{
    switch (trouble->kind) {
    case UNMAPPED: map_page(spot, MAP_PRIVATE | MAP_ANONYMOUS); break;
    case PROTECTED: MUST(!mprotect(spot->page, PAGE, PROT_READ | PROT_WRITE)); break;
    case MISSING: supply(spot); break;
    case WITH_KEY: MUST(!pkey_mprotect(spot->page, PAGE, PROT_READ | PROT_WRITE, 0)); break;
    case TRUNCATED:
        MUST(!ftruncate(spot->file, PAGE));
        write_page(spot->page, (byte *)spot->page);
    }
}

/* Whether the copy faults: a monitor supplies missing pages, and a key may leave the caller its rights. */
static bool faults_occur(void)
{
    return trouble->kind == MISSING    ? strstr(trouble->name, "sigbus") != NULL
           : trouble->kind == WITH_KEY ? trouble->value != 0
                                       : true;
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

static void watch_missing_pages(void)
{
    /* With the flag the kernel reports only faults of user code; its own accesses fail instead. */
    open_userfault(trouble->value, 0);
    start_thread(supply_missing_pages, NULL);
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
        cannot("no memory protection keys here");
}

/* Leaves a gap below the key that is used, to mislead code that looks at the lowest key only. */
static void allocate_second_key(void)
{
    int first = pkey_alloc(0, 0);
    allocate_key();
    pkey_free(first);
}

/* Denies a right that workers keep. */
static void deny(void)
{
    MUST(!pkey_set(key, trouble->value));
}

static const struct trouble troubles[] = {
    {"unmapped-source", SOURCE, UNMAPPED, 0, NULL, NULL},
    {"unmapped-destination", DESTINATION, UNMAPPED, 0, NULL, NULL},
    {"read-only-destination", DESTINATION, PROTECTED, PROT_READ, NULL, NULL},
    {"forbidden-source", SOURCE, PROTECTED, PROT_NONE, NULL, NULL},
    {"forbidden-destination", DESTINATION, PROTECTED, PROT_NONE, NULL, NULL},
    {"truncated-source", SOURCE, TRUNCATED, 0, NULL, NULL},
    {"truncated-destination", DESTINATION, TRUNCATED, 0, NULL, NULL},
    {"missing-source", SOURCE, MISSING, 0, watch_missing_pages, NULL},
    {"missing-destination", DESTINATION, MISSING, 0, watch_missing_pages, NULL},
    {"missing-source-user-mode", SOURCE, MISSING, UFFD_USER_MODE_ONLY, watch_missing_pages, NULL},
    {"missing-destination-user-mode", DESTINATION, MISSING, UFFD_USER_MODE_ONLY,
     watch_missing_pages, NULL},
    {"missing-source-sigbus", SOURCE, MISSING, 0, by_sigbus, NULL},
    {"missing-destination-sigbus", DESTINATION, MISSING, 0, by_sigbus, NULL},
    {"key-of-caller-source", SOURCE, WITH_KEY, 0, NULL, allocate_key},
    {"key-of-caller-destination", DESTINATION, WITH_KEY, 0, NULL, allocate_key},
    {"key-of-others-source", SOURCE, WITH_KEY, PKEY_DISABLE_ACCESS, allocate_key, deny},
    {"second-key-of-others-source", SOURCE, WITH_KEY, PKEY_DISABLE_ACCESS, allocate_second_key,
     deny},
    {"key-of-others-destination", DESTINATION, WITH_KEY, PKEY_DISABLE_ACCESS, allocate_key, deny},
    {"key-for-reading-destination", DESTINATION, WITH_KEY, PKEY_DISABLE_WRITE, allocate_key, deny},
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
    if (!spot || !faults_occur())
        wrong("signal %d, code %d at %p, which was sound", signo, info->si_code, info->si_addr);
    mend(spot);
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
        MUST(!sigaction(SIGSEGV, &action, NULL));
    if (!sigbus || strcmp(reaction, "other"))
        MUST(!sigaction(SIGBUS, &action, NULL));
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
    MUST(base != MAP_FAILED);
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
        spoil(&spots[i]);
    faults = last_signal = last_code = in_other_thread = elsewhere = 0;
    blocked_signals = 0;
    if (sigsetjmp(before_copy, 1)) {
        jumped = 1;
        for (int i = 0; i < spots_used; i++)
            mend(&spots[i]);
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
        wrong("usage: faults TROUBLE REACTION [PLACE SIZE]");
    caller = gettid();
    if (trouble->prepare)
        trouble->prepare();
    /* This copy starts the workers. */
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
