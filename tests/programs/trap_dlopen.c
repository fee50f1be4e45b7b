/* Has a library (trap_library.c) copy that it is linked with, or that it opens as the second word
 * says: now and deepbind by dlopen, namespace by dlmopen, with a libc of its own.
 */
#include "trap.h"

extern void copy_when_asked(void) __attribute__((weak));

static void *opened(const char *path, const char *way)
{
    void *library = !strcmp(way, "namespace")
                        ? dlmopen(LM_ID_NEWLM, path, RTLD_NOW)
                        : dlopen(path, RTLD_NOW | (strcmp(way, "now") ? RTLD_DEEPBIND : 0));
    if (!library)
        wrong("%s: %s", path, dlerror());
    return library;
}

int main(int count, char **words)
{
    void *library = count > 2 ? opened(words[1], words[2]) : NULL;
    void (*copy)(void) =
        library ? (void (*)(void))dlsym(library, "copy_when_asked") : copy_when_asked;
    copy_once(8 * MIB, 1, "before the library copies");
    if (!copy)
        wrong("no copy_when_asked: %s", dlerror());
    copy();
    if (library)
        dlclose(library);
    copy_once(8 * MIB, 2, "afterwards");
    return 0;
}
