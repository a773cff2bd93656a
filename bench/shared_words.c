// SPDX-License-Identifier: BSD-3-Clause
#include "shared_words.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "device.h"

struct handle {
    int64_t pid;
    int64_t fd; // -1: none
    uint64_t name;
};

static struct bench_shared_words *map(int fd, uint64_t name)
{
    struct stat file;
    if (fstat(fd, &file) || file.st_size != BENCH_WORDS_SIZE)
        return NULL;
    struct bench_shared_words *words =
        mmap(NULL, BENCH_WORDS_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (words == MAP_FAILED)
        return NULL;
    if (words->name == name)
        return words;
    munmap(words, BENCH_WORDS_SIZE);
    return NULL;
}

static void offer(struct handle *mine, struct bench_shared_words **words)
{
    int fd = -1;
    void *page = NULL;
    if (bench_words_open(&fd, &page))
        return;
    *words = page;
    *mine = (struct handle){
        .pid = getpid(),
        .fd = fd,
        .name = (uint64_t)bench_now_ns() ^ (uint64_t)getpid() << 40,
    };
    (*words)->name = mine->name;
}

int bench_shared_words_open(struct bench *bench, struct bench_shared_words **words)
{
    struct handle mine = {.fd = -1}, all[BENCH_RANKS_MAX];
    *words = NULL;
    if (bench->leader && bench->peer >= 0)
        offer(&mine, words);
    int rc = bench_allgather(bench, &mine, all, sizeof(mine));
    if (rc == 0 && !bench->leader) {
        const struct handle *peer = &all[bench->peer];
        int fd = -1;
        if (peer->fd >= 0 && bench_peer_fd(peer->pid, (int)peer->fd, &fd) == 0) {
            *words = map(fd, peer->name);
            close(fd);
        }
    }
    bool have = *words || bench->peer < 0, each[BENCH_RANKS_MAX];
    if (rc == 0)
        rc = bench_allgather(bench, &have, each, sizeof(have)); // and all are through with the file
    if (mine.fd >= 0)
        close((int)mine.fd);
    for (int i = 0; i < bench->ranks && rc == 0; i++)
        rc = each[i] ? 0 : -ENOTSUP;
    return rc;
}

void bench_shared_words_close(struct bench_shared_words *words)
{
    if (words)
        munmap(words, BENCH_WORDS_SIZE);
}
