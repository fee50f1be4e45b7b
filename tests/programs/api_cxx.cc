// The header in C++: the same names, and nothing that only C understands.
#include <adma.h>
#include <cstdio>
#include <vector>

int main()
{
	std::vector<char> source(1 << 20, 'a'), target(1 << 20);
	adma_cookie_t cookie = adma_icopy(source.data(), target.data(), source.size());
	if (cookie < 0 || adma_wait_copy(cookie) != 0 || target != source)
		return 1;
	const adma_op op{source.data(), target.data(), 100};
	if (adma_wait_copy(adma_icopy_batch(&op, 1)) != 0 || adma_copy(source.data(), target.data(), 5))
		return 2;
	std::puts(adma_strerror(adma_check_copy(cookie)));
	return 0;
}
