// SPDX-License-Identifier: BSD-3-Clause
// Namespaces, mounts and filters of system calls, as containers have them.
#ifndef TESTS_E2E_CONTAINERS_H
#define TESTS_E2E_CONTAINERS_H

#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <string>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

#include "e2e/cable.h"
#include "e2e/own_pids.h"
#include "e2e/ranks.h"

inline bool may_make_containers()
{
    return system("unshare -n -p -i -u -C -m --fork ip link show lo > /dev/null 2>&1") == 0;
}

// A filter that refuses what Docker's default profile does, as far as a library may want it, and
// pidfds, which its older ones did.
inline void refuse_system_calls()
{
    const std::vector<unsigned> refused = {SYS_add_key,
                                           SYS_bpf,
                                           SYS_clock_settime,
                                           SYS_delete_module,
                                           SYS_kcmp,
                                           SYS_keyctl,
                                           SYS_mount,
                                           SYS_move_pages,
                                           SYS_name_to_handle_at,
                                           SYS_open_by_handle_at,
                                           SYS_perf_event_open,
                                           SYS_pidfd_getfd,
                                           SYS_pidfd_open,
                                           SYS_pidfd_send_signal,
                                           SYS_pivot_root,
                                           SYS_process_vm_readv,
                                           SYS_process_vm_writev,
                                           SYS_ptrace,
                                           SYS_request_key,
                                           SYS_set_mempolicy,
                                           SYS_mbind,
                                           SYS_setns,
                                           SYS_umount2,
                                           SYS_unshare,
                                           SYS_userfaultfd};
    std::vector<struct sock_filter> program = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    for (unsigned call : refused) {
        program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1));
        program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM));
    }
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    const struct sock_fprog filter = {static_cast<unsigned short>(program.size()), program.data()};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
    CHECK(syscall(SYS_pidfd_open, getpid(), 0) == -1 && errno == EPERM);
}

// A root that nobody may write to, and a /dev/shm with room for nothing. volume: a folder that can
// still be written to, or "".
inline void restrict_mounts(const std::string &volume)
{
    CHECK(unshare(CLONE_NEWNS) == 0);
    CHECK(mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0);
    if (!volume.empty())
        CHECK(mount(volume.c_str(), volume.c_str(), nullptr, MS_BIND, nullptr) == 0);
    CHECK(mount("none", "/dev/shm", "tmpfs", MS_RDONLY, nullptr) == 0);
    CHECK(mount("none", "/", nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) == 0);
    CHECK(open("/dev/shm/x", O_CREAT | O_RDWR | O_CLOEXEC, 0600) == -1 && errno == EROFS);
    CHECK(open("/x", O_CREAT | O_RDWR | O_CLOEXEC, 0600) == -1 && errno == EROFS);
}

// A user namespace in which this user has its own id.
inline void enter_users()
{
    const std::string own = std::to_string(geteuid()) + " " + std::to_string(geteuid()) + " 1";
    const std::string group = std::to_string(getegid()) + " " + std::to_string(getegid()) + " 1";
    CHECK(unshare(CLONE_NEWUSER) == 0);
    for (const auto &[name, text] : std::vector<std::pair<const char *, std::string>>{
             {"setgroups", "deny"}, {"uid_map", own}, {"gid_map", group}}) {
        std::ofstream file(std::string("/proc/self/") + name);
        file << text << std::flush;
        CHECK(file.good());
    }
}

// parts: ",PART,PART,"; of pid start_in_a_container has seen to.
inline void enter_container(Rank &rank, const std::string &parts, const std::string &volume)
{
    const auto has = [&](const char *part) {
        return parts.find(std::string(",") + part + ",") != std::string::npos;
    };
    CHECK(has("pid") == (getpid() == 2));
    if (has("net"))
        join(rank);
    int flags = 0;
    flags |= has("ipc") ? CLONE_NEWIPC : 0;
    flags |= has("uts") ? CLONE_NEWUTS : 0;
    flags |= has("cgroup") ? CLONE_NEWCGROUP : 0;
    CHECK(unshare(flags) == 0);
    if (has("uts"))
        CHECK(sethostname(rank.rank == 0 ? "pod-0" : "pod-1", 5) == 0);
    if (has("mount"))
        restrict_mounts(volume);
    if (has("user"))
        enter_users();
    if (has("seccomp"))
        refuse_system_calls();
}

#endif
