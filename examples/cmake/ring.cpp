// SPDX-License-Identifier: BSD-3-Clause
// The ring of ring.c in C++: what fails throws, and what was made is given back at its end.
#include <array>
#include <cstdio>
#include <exception>
#include <vector>

#include <peerhop/peerhop.hpp>

static int ring()
{
    ph_context_params params{};
    params.device = "host";
    peerhop::context context(params);
    const int rank = context.rank(), ranks = context.ranks();
    const int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    std::vector<peerhop::channel> channels = context.exchange(std::array<ph_operation, 2>{
        peerhop::unbound(1, next, PH_ROLE_SENDER), peerhop::unbound(1, before, PH_ROLE_RECEIVER)});
    peerhop::queue queue = context.make_queue();
    peerhop::group group;
    int received = -1;

    group.send_from(channels[0], &rank, sizeof rank)
        .recv_into(channels[1], &received, sizeof received);
    group.enqueue(queue);
    queue.synchronize();
    channels[1].status();
    std::printf("rank %d has the number of rank %d\n", rank, received);
    return received == before ? 0 : 1;
}

int main()
{
    try {
        return ring();
    } catch (const std::exception &failure) { // the library has logged the sentence
        std::fprintf(stderr, "%s\n", failure.what());
        return 1;
    }
}
