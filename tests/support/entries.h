// SPDX-License-Identifier: BSD-3-Clause
// How many entries a folder has, "." and ".." included. Of /proc/self/fd: the descriptors of this
// process, the one that counts them included.
#ifndef TESTS_SUPPORT_ENTRIES_H
#define TESTS_SUPPORT_ENTRIES_H

#include <chrono>
#include <thread>

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

// The same of this process' threads, when no more of them vanish: of one that was joined the kernel
// shows the entry a little longer.
inline int thread_entries()
{
    int least = entries("/proc/self/task");
    for (int looks = 0; looks < 10; looks++) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        const int n = entries("/proc/self/task");
        if (n < least) {
            least = n;
            looks = 0;
        }
    }
    return least;
}

#endif
