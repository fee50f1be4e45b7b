/* Calls the copying function of a library that it is linked with. */
#include "trap.h"

void copy_when_asked(void);

int main(void)
{
    copy_when_asked();
    copy_once(8 * MIB, 100, "main");
    return 0;
}
