// SPDX-License-Identifier: BSD-3-Clause
// A stand-in for libnccl.so.2, for the stand-in driver: what peerhop-perf --compare nccl calls,
// between two ranks of one machine. Each transfer is a host function of the stream; bytes go
// through a ring of slots in memory that both ranks map.
//
// PEERHOP_STANDIN_NCCL_FAIL names a function that fails.
#include <dlfcn.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT    __attribute__((visibility("default")))
#define ID_SIZE   128
#define SLOTS     4
#define SLOT_SIZE ((size_t)1 << 20)
#define VERSION   22703 // 2.27.3

enum { SUCCESS, CUDA_ERROR, SYSTEM_ERROR, INTERNAL_ERROR, INVALID_ARGUMENT };

typedef struct {
    char internal[ID_SIZE];
} unique_id;

// One way: numbers of slots that were filled and emptied.
struct way {
    _Atomic uint64_t filled, emptied;
    char slots[SLOTS][SLOT_SIZE];
};

struct pair {
    _Atomic bool aborted;
    struct way ways[2]; // by the sender's rank
};

struct job {
    struct job *next;
    struct comm *comm;
    bool sends;
    char *bytes;
    size_t size;
};

struct comm {
    struct pair *pair;
    int rank;
    struct job *jobs; // as long as it lives: a graph may run them again
};

int ncclGetVersion(int *version);
int ncclGetUniqueId(unique_id *id);
int ncclCommInitRank(struct comm **comm, int ranks, unique_id id, int rank);
int ncclCommDestroy(struct comm *comm);
int ncclCommAbort(struct comm *comm);
int ncclSend(const void *from, size_t count, int type, int peer, struct comm *comm, void *stream);
int ncclRecv(void *to, size_t count, int type, int peer, struct comm *comm, void *stream);
int ncclGroupStart(void);
int ncclGroupEnd(void);
const char *ncclGetErrorString(int result);

static bool fails(const char *function)
{
    const char *which = getenv("PEERHOP_STANDIN_NCCL_FAIL");
    return which && strcmp(which, function) == 0;
}

EXPORT int ncclGetVersion(int *version)
{
    *version = VERSION;
    return fails(__func__) ? INTERNAL_ERROR : SUCCESS;
}

EXPORT const char *ncclGetErrorString(int result)
{
    static const char *const texts[] = {"no error", "unhandled cuda error",
                                        "unhandled system error", "internal error",
                                        "invalid argument"};
    return texts[result];
}

EXPORT int ncclGetUniqueId(unique_id *id)
{
    int fd = memfd_create("fake-nccl", MFD_CLOEXEC);
    if (fails(__func__))
        return INTERNAL_ERROR;
    if (fd < 0 || ftruncate(fd, sizeof(struct pair)))
        return SYSTEM_ERROR;
    snprintf(id->internal, ID_SIZE, "/proc/%d/fd/%d", (int)getpid(), fd);
    return SUCCESS;
}

EXPORT int ncclCommInitRank(struct comm **out, int ranks, unique_id id, int rank)
{
    if (ranks != 2 || fails(__func__))
        return INVALID_ARGUMENT;
    int fd = open(id.internal, O_RDWR | O_CLOEXEC);
    void *pair = mmap(NULL, sizeof(struct pair), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    struct comm *comm = calloc(1, sizeof(*comm));
    close(fd);
    if (pair == MAP_FAILED || !comm)
        return SYSTEM_ERROR;
    comm->pair = pair;
    comm->rank = rank;
    *out = comm;
    return SUCCESS;
}

EXPORT int ncclCommDestroy(struct comm *comm)
{
    munmap(comm->pair, sizeof(struct pair));
    for (struct job *next, *job = comm->jobs; job; job = next) {
        next = job->next;
        free(job);
    }
    free(comm);
    return SUCCESS;
}

// What still runs looks at it.
EXPORT int ncclCommAbort(struct comm *comm)
{
    comm->pair->aborted = true;
    return SUCCESS;
}

static void run(void *data)
{
    const struct job *job = data;
    struct pair *pair = job->comm->pair;
    struct way *way = &pair->ways[job->sends ? job->comm->rank : 1 - job->comm->rank];
    unsigned looks = 0;
    for (size_t done = 0, part; done < job->size; done += part) {
        while (job->sends ? way->filled - way->emptied == SLOTS : way->filled == way->emptied) {
            if (pair->aborted)
                return;
            if (looks++ < 100)
                sched_yield();
            else
                usleep(50); // whom it waits for may want the core
        }
        part = job->size - done < SLOT_SIZE ? job->size - done : SLOT_SIZE;
        if (job->sends)
            memcpy(way->slots[way->filled % SLOTS], job->bytes + done, part);
        else
            memcpy(job->bytes + done, way->slots[way->emptied % SLOTS], part);
        atomic_fetch_add(job->sends ? &way->filled : &way->emptied, 1);
    }
}

static int enqueue(struct comm *comm, bool sends, void *bytes, size_t size, void *stream)
{
    static int (*launch)(void *stream, void (*call)(void *), void *data);
    if (!launch) {
        const char *driver = getenv("PEERHOP_LIBCUDA");
        void *library = driver ? dlopen(driver, RTLD_NOW) : NULL;
        void *symbol = library ? dlsym(library, "cuLaunchHostFunc") : NULL;
        memcpy(&launch, &symbol, sizeof(launch));
    }
    struct job *job = launch ? malloc(sizeof(*job)) : NULL;
    if (!job)
        return SYSTEM_ERROR;
    *job = (struct job){comm->jobs, comm, sends, bytes, size};
    comm->jobs = job;
    return launch(stream, run, job) ? CUDA_ERROR : SUCCESS;
}

EXPORT int ncclSend(const void *from, size_t count, int type, int peer, struct comm *comm,
                    void *stream)
{
    if (type != 0 || peer != 1 - comm->rank || fails(__func__))
        return INVALID_ARGUMENT;
    return enqueue(comm, true, (void *)(uintptr_t)from, count, stream);
}

EXPORT int ncclRecv(void *to, size_t count, int type, int peer, struct comm *comm, void *stream)
{
    if (type != 0 || peer != 1 - comm->rank || fails(__func__))
        return INVALID_ARGUMENT;
    return enqueue(comm, false, to, count, stream);
}

// The sends of a group come first in it, and there is room for them.
EXPORT int ncclGroupStart(void)
{
    return SUCCESS;
}

EXPORT int ncclGroupEnd(void)
{
    return SUCCESS;
}
