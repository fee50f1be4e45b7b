/* Prints how many KiB are resident in a program that has made small copies only. */
#include "trap.h"

int main(void)
{
    char line[200];
    long resident = -1;
    for (int i = 0; i < 1000; i++)
        copy_once(4 * KIB, i, "small copy");
    sleep_ms(50);
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        sscanf(line, "VmRSS: %ld", &resident);
    if (resident < 0)
        cannot("no VmRSS in /proc/self/status");
    printf("%ld\n", resident);
    return 0;
}
