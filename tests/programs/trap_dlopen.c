/* Opens the library named first in a way named second, and lets it copy:
 *   now, deepbind: dlopen; namespace: dlmopen, which has a libc of its own
 * then closes it, with its destructor, and copies on.
 */
#include "trap.h"
#include <dlfcn.h>

int main(int count, char **words)
{
    if (count != 3)
        wrong("want LIBRARY WAY");
    copy_once(8 * MIB, 1, "before dlopen");
    void *library = NULL;
    if (!strcmp(words[2], "now"))
        library = dlopen(words[1], RTLD_NOW);
    if (!strcmp(words[2], "deepbind"))
        library = dlopen(words[1], RTLD_NOW | RTLD_DEEPBIND);
    if (!strcmp(words[2], "namespace"))
        library = dlmopen(LM_ID_NEWLM, words[1], RTLD_NOW);
    if (!library)
        wrong("%s: %s", words[1], dlerror());
    void (*copy)(void) = (void (*)(void))dlsym(library, "copy_when_asked");
    if (!copy)
        wrong("no copy_when_asked: %s", dlerror());
    copy();
    dlclose(library);
    copy_once(8 * MIB, 2, "after dlclose");
    return 0;
}
