/* opens_module MODULE WORD...: calls `scene` of a module, with the words, as Python opens modules. */
#include "usual.h"

int main(int argc, char **argv)
{
    void *module = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    int (*scene)(int, char **) = module ? (int (*)(int, char **))dlsym(module, "scene") : NULL;
    if (!scene) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    return scene(argc - 1, argv + 1);
}
