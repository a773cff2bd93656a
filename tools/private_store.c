// SPDX-License-Identifier: BSD-3-Clause
#include "private_store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"

enum { START_MS = 10000 };

static int refuse(char *error, size_t size, int code, const char *what)
{
    snprintf(error, size, "cannot start a private redis-server: %s: %s", what, strerror(-code));
    return code;
}

static int make_folder(struct private_store *store)
{
    static const char name[] = "/peerhop-XXXXXX";
    const char *base = getenv("TMPDIR");

    // The folder becomes part of a URI, which says an absolute path and its options.
    if (!base || *base != '/' || strpbrk(base, "?%#") ||
        strlen(base) + sizeof(name) > sizeof(store->folder))
        base = "/tmp";
    snprintf(store->folder, sizeof(store->folder), "%s%s", base, name);
    return mkdtemp(store->folder) ? 0 : -errno;
}

static void remove_folder(const char *folder)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;

    while (dir && (entry = readdir(dir)))
        unlinkat(dirfd(dir), entry->d_name, 0); // fails for "." and "..", as it should
    if (dir)
        closedir(dir);
    rmdir(folder);
}

// exec_server is the keeper's child: it never returns. Its output goes to a file, for the case that
// it does not start.
static void exec_server(const struct private_store *store, pid_t parent)
{
    const char *socket_path = store->uri + strlen("unix://");
    char log[sizeof(store->folder) + 8];
    sigset_t none;
    int fd;

    if (!child_bind(parent, SIGKILL))
        _exit(1);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    snprintf(log, sizeof(log), "%s/log", store->folder);
    fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    fd = open("/dev/null", O_RDONLY);
    dup2(fd, STDIN_FILENO);
    execlp("redis-server", "redis-server", "--port", "0", "--unixsocket", socket_path, "--save", "",
           "--appendonly", "no", "--dir", store->folder, "--loglevel", "warning", (char *)NULL);
    _exit(127);
}

// wait_for_end ends the server when the owner asks for it, or is no more, and returns its status.
static int wait_for_end(struct child *server)
{
    sigset_t signals;
    int status;

    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGCHLD);
    while (!child_ended(server, &status)) {
        // SIGKILL: nothing is to be saved, and a polite end takes a tenth of a second.
        if (sigwaitinfo(&signals, NULL) == SIGTERM)
            child_signal(server, SIGKILL);
    }
    return child_code(status);
}

// keep is the child, a process that has nothing to do but to clean up: its owner may be killed. It
// never returns.
static void keep(const struct private_store *store, pid_t parent)
{
    const pid_t self = getpid();
    struct child server = {0};
    int null = open("/dev/null", O_RDWR), status = 1, rc = -1;
    sigset_t all;

    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    signal(SIGTERM, SIG_DFL); // what is ignored cannot be waited for
    signal(SIGCHLD, SIG_DFL);
    prctl(PR_SET_NAME, "peerhop-store");
    setpgid(0, 0); // a Ctrl-C at the terminal is for the ranks
    for (int fd = 0; fd < 3; fd++)
        dup2(null, fd); // who reads the owner's output waits for its end
    if (child_bind(parent, SIGTERM))
        rc = child_fork(&server);
    if (rc == 0)
        exec_server(store, self);
    if (rc > 0)
        status = wait_for_end(&server);
    remove_folder(store->folder);
    _exit(status);
}

// answers tells whether the server at the socket answers PING.
static bool answers(const char *socket_path)
{
    static const char ping[] = "PING\r\n";
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval patience = {.tv_sec = 1};
    char reply[7];
    bool good;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(address.sun_path, sizeof(address.sun_path), "%s", socket_path);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    good = connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 &&
           send(fd, ping, sizeof(ping) - 1, MSG_NOSIGNAL) == sizeof(ping) - 1 &&
           recv(fd, reply, sizeof(reply), MSG_WAITALL) == sizeof(reply) &&
           memcmp(reply, "+PONG\r\n", sizeof(reply)) == 0;
    if (fd >= 0)
        close(fd);
    return good;
}

static int refuse_ended(char *error, size_t size, int status)
{
    if (status == 127)
        return refuse(error, size, -ENOENT, "redis-server");
    if (status > 128)
        snprintf(error, size, "cannot start a private redis-server: signal %d ended it at once: %s",
                 status - 128, strsignal(status - 128));
    else
        snprintf(error, size, "cannot start a private redis-server: it ended at once, status %d",
                 status);
    return -ECHILD;
}

static int wait_until_ready(struct private_store *store, char *error, size_t size)
{
    int64_t deadline = phi_deadline(START_MS);
    int status;

    while (!answers(store->uri + strlen("unix://"))) {
        if (child_ended(&store->keeper, &status))
            return refuse_ended(error, size, child_code(status));
        if (phi_remaining_ms(deadline) == 0)
            return refuse(error, size, -ETIMEDOUT, "it does not answer");
        usleep(1000);
    }
    return 0;
}

int private_store_start(struct private_store *store, char *error, size_t error_size)
{
    const pid_t self = getpid();
    int rc;

    *store = (struct private_store){0};
    rc = make_folder(store);
    if (rc < 0) {
        rc = refuse(error, error_size, rc, store->folder);
        store->folder[0] = 0;
        return rc;
    }
    snprintf(store->uri, sizeof(store->uri), "unix://%s/redis.sock", store->folder);
    rc = child_fork(&store->keeper);
    if (rc == 0)
        keep(store, self);
    rc =
        rc < 0 ? refuse(error, error_size, rc, "fork") : wait_until_ready(store, error, error_size);
    if (rc < 0)
        private_store_stop(store);
    return rc;
}

void private_store_stop(struct private_store *store)
{
    int status;

    // Where a policy denies the signal, the keeper gets it at our end.
    if (child_signal(&store->keeper, SIGTERM) == 0) {
        child_signal(&store->keeper, SIGCONT); // who is stopped sees it then
        child_wait(&store->keeper, &status);
    }
    if (store->folder[0])
        remove_folder(store->folder); // where the keeper was killed
    *store = (struct private_store){0};
}
