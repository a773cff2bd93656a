// SPDX-License-Identifier: BSD-3-Clause
// How many entries a folder has, "." and ".." included. Of /proc/self/fd: the descriptors of this
// process, the one that counts them included.
#ifndef TESTS_SUPPORT_ENTRIES_H
#define TESTS_SUPPORT_ENTRIES_H

#include <dirent.h>

inline int entries(const char *folder)
{
    DIR *directory = opendir(folder);
    int n = 0;
    while (directory && readdir(directory))
        n++;
    if (directory)
        closedir(directory);
    return n;
}

#endif
