// SPDX-License-Identifier: BSD-3-Clause
#include "fuzz.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

int descriptor_given = -1;
const char *fuzz_secret;

uint8_t *copy_of(struct input piece)
{
    uint8_t *copy = malloc(piece.left ? piece.left : 1);

    HOLD(copy);
    if (piece.left > 0)
        memcpy(copy, piece.at, piece.left);
    return copy;
}

static void ignore(void *opaque, enum ph_log_level level, const char *line)
{
    (void)opaque;
    (void)level;
    // What another process can put into a line must not be able to begin another one.
    HOLD(strpbrk(line, "\n\r\033") == NULL);
    HOLD(!fuzz_secret || strstr(line, fuzz_secret) == NULL);
}

struct fuzz_context *fuzz_context(void)
{
    static struct fuzz_context context;
    static const char *const settings[] = {"PEERHOP_CHANNELS=16", "PEERHOP_SPIN_US=0", NULL};

    if (!context.report.log) {
        phi_report_init(&context.report, ignore, NULL, PH_LOG_DEBUG);
        HOLD(phi_config_read(&context.config, settings, &context.report) == 0);
    }
    return &context;
}

static int memory_file(off_t size, int seals)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    HOLD(fd >= 0 && ftruncate(fd, size) == 0 && fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
}

static int full_pipe(void)
{
    static const char zeros[4096];
    int ends[2];

    HOLD(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
    while (write(ends[1], zeros, sizeof(zeros)) > 0)
        ;
    fcntl(ends[1], F_SETFL, 0);
    return ends[1];
}

static int read_only(void)
{
    char path[64];
    int fd = memory_file(65536, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return open(path, O_RDONLY | O_CLOEXEC);
}

static int make(unsigned which)
{
    int ends[2];

    switch (which) {
    case DESCRIPTOR_SEALED:
        return memory_file(65536, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    case DESCRIPTOR_UNSEALED:
        return memory_file(65536, 0);
    case DESCRIPTOR_READ_ONLY:
        return read_only();
    case DESCRIPTOR_SPARSE:
        return memory_file((off_t)1 << 40, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    case DESCRIPTOR_PIPE:
        return full_pipe();
    case DESCRIPTOR_DIRECTORY:
        return open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    case DESCRIPTOR_EVENT:
        return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    case DESCRIPTOR_SOCKET:
        HOLD(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
        return ends[0];
    default:
        return open("/dev/null", O_RDWR | O_CLOEXEC);
    }
}

static int original(unsigned which)
{
    static int made[DESCRIPTOR_COUNT];

    which %= DESCRIPTOR_COUNT;
    if (which == DESCRIPTOR_NONE || which == DESCRIPTOR_GIVEN)
        return which == DESCRIPTOR_NONE ? -1 : descriptor_given;
    if (made[which] == 0) {
        made[which] = make(which);
        HOLD(made[which] > 0);
    }
    return made[which];
}

int descriptor(unsigned which)
{
    int fd = original(which);

    return fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

uint64_t descriptor_inode(unsigned which)
{
    struct stat st = {0};

    fstat(original(which), &st);
    return st.st_ino;
}

int store_drop(void *opaque, const char *key, int64_t ms)
{
    (void)opaque;
    (void)key;
    (void)ms;
    return 0;
}
