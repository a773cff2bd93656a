// SPDX-License-Identifier: BSD-3-Clause
#include "redis.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define START_TRIES 2500 // of 2 ms

static _Noreturn void run_server(const struct bench_redis *redis, pid_t parent)
{
    // The parent may have gone before the kernel was asked to tell.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    int null = open("/dev/null", O_RDWR);
    dup2(null, STDIN_FILENO);
    dup2(null, STDOUT_FILENO);
    execlp("redis-server", "redis-server", "--port", "0", "--unixsocket", redis->socket, "--save", "",
           "--appendonly", "no", "--dir", redis->folder, (char *)NULL);
    fprintf(stderr, "peerhop-perf: redis-server: %s; install it, or name a store (--store)\n",
            strerror(errno));
    _exit(127);
}

static int try_connect(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    int rc = connect(fd, (struct sockaddr *)&address, sizeof(address)) ? -errno : 0;
    close(fd);
    return rc;
}

static int wait_for_server(struct bench_redis *redis)
{
    for (int i = 0; i < START_TRIES; i++) {
        if (try_connect(redis->socket) == 0)
            return 0;
        if (waitpid(redis->pid, NULL, WNOHANG) == redis->pid) {
            redis->pid = 0;
            fprintf(stderr, "peerhop-perf: the private Redis ended at once\n");
            return -ECHILD;
        }
        usleep(2000);
    }
    fprintf(stderr, "peerhop-perf: the private Redis does not take connections\n");
    return -ETIMEDOUT;
}

int bench_redis_start(struct bench_redis *redis)
{
    // Unix socket paths are short, so not under the build folder.
    *redis = (struct bench_redis){.folder = "/tmp/peerhop-perf.XXXXXX"};
    if (!mkdtemp(redis->folder)) {
        int rc = -errno;
        perror("peerhop-perf: mkdtemp");
        *redis->folder = 0;
        return rc;
    }
    snprintf(redis->socket, sizeof(redis->socket), "%s/redis", redis->folder);
    pid_t parent = getpid();
    redis->pid = fork();
    if (redis->pid == 0)
        run_server(redis, parent);
    int rc = redis->pid < 0 ? -errno : wait_for_server(redis);
    if (rc)
        bench_redis_stop(redis);
    return rc;
}

void bench_redis_stop(struct bench_redis *redis)
{
    if (redis->pid > 0) {
        kill(redis->pid, SIGKILL);
        waitpid(redis->pid, NULL, 0);
    }
    if (*redis->folder) {
        unlink(redis->socket);
        rmdir(redis->folder);
    }
    *redis = (struct bench_redis){0};
}
