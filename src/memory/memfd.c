// SPDX-License-Identifier: BSD-3-Clause
#include "memory/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

static int set_size(int fd, uint64_t size)
{
    int rc;

    do
        rc = ftruncate(fd, (off_t)size) ? -errno : 0;
    while (rc == -EINTR);
    return rc;
}

// Beyond it the system would end the process, by SIGXFSZ.
uint64_t phi_memfd_largest(void)
{
    struct rlimit limit;

    return getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX
                                                                              : limit.rlim_cur;
}

int phi_memfd_create(struct phi_report *report, const char *what, uint64_t size, int *fd)
{
    int made = memfd_create(what, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int rc;

    if (made < 0)
        return phi_fail(report, -errno, "memfd_create for the %s: %s", what, ph_strerror(-errno));
    if (size > phi_memfd_largest()) {
        rc = phi_fail(report, -ENOMEM,
                      "a %s of %llu bytes cannot be made: files of this process have at most %llu "
                      "bytes (ulimit -f)",
                      what, (unsigned long long)size, (unsigned long long)phi_memfd_largest());
        goto close_file;
    }
    // A size that no file can have is memory that there is not.
    rc = size > INT64_MAX ? -EFBIG : set_size(made, size);
    if (rc) {
        rc = phi_fail(report, -ENOMEM, "a %s of %llu bytes cannot be made: %s", what,
                      (unsigned long long)size, ph_strerror(rc));
        goto close_file;
    }
    if (fcntl(made, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
        rc = phi_fail(report, -errno, "the %s cannot be sealed: %s", what, ph_strerror(-errno));
        goto close_file;
    }
    *fd = made;
    return 0;

close_file:
    close(made);
    return rc;
}

int phi_memfd_inspect(int fd, struct phi_memfd_info *info)
{
    int seals = fcntl(fd, F_GET_SEALS);
    int flags = fcntl(fd, F_GETFL);
    struct statfs fs;
    struct stat st;

    if (seals < 0 || flags < 0 || fstat(fd, &st))
        return -errno;
    if ((flags & O_ACCMODE) != O_RDWR)
        return -EINVAL;
    while (fstatfs(fd, &fs)) {
        if (errno != EINTR)
            return -errno;
    }
    *info = (struct phi_memfd_info){
        .seals = seals,
        .size = (uint64_t)st.st_size,
        .inode = st.st_ino,
        .granule = (uint64_t)sysconf(_SC_PAGESIZE),
    };
    // Files of huge pages are mapped by whole huge pages only.
    if (fs.f_type == HUGETLBFS_MAGIC)
        info->granule = (uint64_t)fs.f_bsize;
    return 0;
}

const char *phi_memfd_trouble(int rc)
{
    return rc == -EINVAL ? "its descriptor is no memory file for reading and writing"
                         : strerrordesc_np(-rc);
}
