// SPDX-License-Identifier: BSD-3-Clause
#include "peer/node.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/forked.h"
#include "base/random.h"
#include "transport/transport.h"

// '@' stands for the leading zero byte of an abstract name.
static socklen_t make_address(const char *name, struct sockaddr_un *address)
{
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    size_t length = strnlen(name, sizeof address->sun_path - 1);
    memcpy(address->sun_path, name, length);
    if (name[0] == '@')
        address->sun_path[0] = 0;
    else
        length++;
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
}

static int make_socket(void)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    phi_forked_close(fd);
    return fd;
}

// Behind the prefix: a number of the node, then a random one.
#define NAME_PREFIX "peerhop-"
#define NAME_BEFORE "new-tmp-" // of the same length, for a path socket that does not listen yet
enum { NODE_DIGITS = 8, NAME_DIGITS = NODE_DIGITS + 16 };

// Returns whether a path or an abstract name has this prefix, and behind it as many characters as
// our names have.
static bool has_form(const char *name, const char *prefix)
{
    const char *slash = strrchr(name, '/');
    if (name[0] != '@' && name[0] != '/')
        return false;
    const char *last = name[0] == '@' ? name + 1 : slash + 1;
    return strncmp(last, prefix, strlen(prefix)) == 0 &&
           strlen(last) == strlen(prefix) + NAME_DIGITS;
}

// Returns whether a name has the form of those that phi_node_listen makes. A member record must not
// send us to the sockets of others.
static bool is_ours(const char *name)
{
    return has_form(name, NAME_PREFIX);
}

static bool is_of_node(const char *path, uint32_t node)
{
    char digits[NODE_DIGITS + 1];
    snprintf(digits, sizeof digits, "%08x", node);
    return strncmp(path + strlen(path) - NAME_DIGITS, digits, NODE_DIGITS) == 0;
}

// A socket that does not listen yet has its first name only for moments (publish).
#define NEW_S 60
static bool is_old(const char *path)
{
    struct stat status;
    return lstat(path, &status) == 0 && status.st_mtime < time(NULL) - NEW_S;
}

// Returns whether nobody on this node listens at a path. A listener on another node refuses, too:
// in a file system that nodes share, a path leads only to sockets of one's own kernel.
static bool is_dead(const char *path)
{
    struct sockaddr_un address;
    socklen_t length = make_address(path, &address);
    int fd = make_socket();
    bool dead =
        fd >= 0 && connect(fd, (struct sockaddr *)&address, length) != 0 && errno == ECONNREFUSED;
    if (fd >= 0)
        close(fd);
    return dead;
}

// Removes the names of ranks that were killed. A rank has its name only while it listens (publish),
// so a name at which nobody listens belongs to a killed rank. Sockets of other programs, and of
// other users, refuse in another way or cannot be removed.
static void sweep(const char *directory, uint32_t node)
{
    DIR *folder = opendir(directory);
    const struct dirent *entry;
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        char path[108];
        int n = snprintf(path, sizeof path, "%s/%.40s", directory, entry->d_name);
        if (n < 0 || (size_t)n >= sizeof path)
            continue;
        const bool left = is_ours(path) || (has_form(path, NAME_BEFORE) && is_old(path));
        if (left && is_of_node(path, node) && is_dead(path))
            unlink(path);
    }
    if (folder != NULL)
        closedir(folder);
}

// A path socket gets its name only when it listens already, because a rank that finds a dead socket
// removes its name.
static int publish(int fd, const char *directory, const char *name)
{
    char before[128];
    struct sockaddr_un address;
    if (directory[0] != 0) // the same length: another prefix
        snprintf(before, sizeof before, "%s/" NAME_BEFORE "%s", directory,
                 name + strlen(name) - NAME_DIGITS);
    socklen_t length = make_address(directory[0] ? before : name, &address);
    // A path socket is for this user only: it gets the mode that the socket has when it is bound.
    if (fchmod(fd, 0600) != 0 || bind(fd, (struct sockaddr *)&address, length) != 0)
        return -errno;
    int rc = listen(fd, 1024) != 0 ? -errno : 0;
    if (rc == 0 && directory[0] != 0 && rename(before, name) != 0)
        rc = -errno;
    if (rc && directory[0] != 0)
        unlink(before);
    return rc;
}

int phi_node_listen(struct phi_report *report, const char *directory, uint32_t node, char *name)
{
    char text[256];
    uint64_t id;
    phi_random(&id, sizeof id);
    snprintf(text, sizeof text, "%s%s" NAME_PREFIX "%08x%016llx", directory[0] ? directory : "@",
             directory[0] ? "/" : "", node, (unsigned long long)id);
    if (directory[0] != 0 && directory[0] != '/')
        return phi_fail(report, -EINVAL, "socket directory \"%s\" is not an absolute path",
                        directory);
    if (strlen(text) >= 108)
        return phi_fail(report, -ENAMETOOLONG,
                        "socket directory \"%s\" is too long for a unix socket", directory);
    int fd = make_socket();
    if (fd < 0)
        return phi_fail(report, fd, "cannot make a unix socket: %s", ph_strerror(fd));
    if (directory[0] != 0 && node != 0)
        sweep(directory, node);
    int error = publish(fd, directory, text);
    if (error) {
        close(fd);
        return phi_fail(report, error, "cannot listen on unix socket \"%s\": %s", text,
                        ph_strerror(error));
    }
    memcpy(name, text, strlen(text) + 1);
    return fd;
}

void phi_node_unlisten(const char *name)
{
    if (name[0] != '@' && name[0] != 0)
        unlink(name);
}

static bool read_numbers(const char *path, unsigned long numbers[3], size_t count)
{
    char text[128], *at = text;
    FILE *file = fopen(path, "re");
    bool read = file != NULL && fgets(text, sizeof text, file) != NULL;
    if (file != NULL)
        fclose(file);
    for (size_t i = 0; read && i < count; i++) {
        char *end;
        numbers[i] = strtoul(at, &end, 10);
        read = end != at;
        at = end;
    }
    return read;
}

// In a user namespace that does not map all users, each user that is not mapped has the overflow
// id.
bool phi_node_ambiguous(uint32_t uid)
{
    unsigned long overflow[3] = {65534}, map[3];
    read_numbers("/proc/sys/kernel/overflowuid", overflow, 1);
    return uid == overflow[0] && !(read_numbers("/proc/self/uid_map", map, 3) && map[0] == 0 &&
                                   map[1] == 0 && map[2] == UINT32_MAX);
}

bool phi_node_trusts(int socket)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
        return false;
    const bool same = peer.uid == geteuid() && !phi_node_ambiguous(peer.uid);
    errno = EPERM;
    return same;
}

bool phi_node_is_self(int socket)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.pid == getpid();
}

int phi_node_connect(const char *name, int *fd)
{
    if (!is_ours(name))
        return -EBADMSG;
    int s = make_socket();
    if (s < 0)
        return s;
    struct sockaddr_un address;
    socklen_t length = make_address(name, &address);
    int rc;
    do {
        rc = connect(s, (struct sockaddr *)&address, length) == 0 ? 0 : -errno;
    } while (rc == -EINTR);
    if (rc == 0 && !phi_node_trusts(s))
        rc = -errno;
    if (rc) {
        close(s);
        return rc;
    }
    *fd = s;
    return 0;
}

int phi_node_send(int socket, const struct phi_node_message *message, int fd)
{
    struct iovec part = {(void *)message, sizeof *message};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        header.msg_control = control.space;
        header.msg_controllen = sizeof control.space;
        struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(rights), &fd, sizeof fd);
    }
    ssize_t n;
    do {
        n = sendmsg(socket, &header, MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    if (n < 0)
        return errno == EPIPE ? -ECONNRESET : -errno;
    return 0;
}

// Takes the first descriptor and closes any other: a peer may send more than was asked for.
static int take_descriptors(struct msghdr *header)
{
    int kept = -1;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c != NULL; c = CMSG_NXTHDR(header, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            if (kept < 0)
                kept = fd;
            else
                close(fd);
        }
    }
    return kept;
}

// Returns the error of a message of that size, or 0. Messages of all versions begin with magic and
// version. We can read no more of a message of another version.
static int check(const struct phi_node_message *message, size_t size, bool cut)
{
    if (size < offsetof(struct phi_node_message, type) || message->magic != PHI_NODE_MAGIC)
        return -EBADMSG;
    if (message->version != PHI_NODE_VERSION)
        return -EPROTONOSUPPORT;
    return size != sizeof *message || cut || message->bytes_size > sizeof message->bytes ? -EBADMSG
                                                                                         : 0;
}

int phi_node_receive(int socket, struct phi_node_message *message, int *fd)
{
    struct iovec part = {message, sizeof *message};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int) * 4)];
    } control;
    struct msghdr header = {.msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = control.space,
                            .msg_controllen = sizeof control.space};
    ssize_t n;
    do {
        n = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    if (n < 0)
        return -errno;
    int received = take_descriptors(&header);
    int rc = 0;
    if (n == 0)
        rc = -ECONNRESET;
    else if (received < 0 && header.msg_flags & MSG_CTRUNC)
        rc = -EMFILE; // a descriptor came, and this process may have no more
    else
        rc = check(message, (size_t)n, header.msg_flags & MSG_TRUNC);
    if (rc && received >= 0)
        close(received);
    if (rc == 0)
        *fd = received;
    return rc;
}

static int wait_for(int socket, short events, int64_t deadline)
{
    struct pollfd p = {.fd = socket, .events = events};
    for (;;) {
        int n = poll(&p, 1, phi_remaining_ms(deadline));
        if (n > 0)
            return 0;
        if (n == 0)
            return -ETIMEDOUT;
        if (errno != EINTR)
            return -errno;
    }
}

int phi_node_call(int socket, const struct phi_node_message *request,
                  struct phi_node_message *answer, int *fd, int64_t deadline)
{
    int rc;
    while ((rc = phi_node_send(socket, request, -1)) == -EAGAIN) {
        if ((rc = wait_for(socket, POLLOUT, deadline)))
            return rc;
    }
    if (rc)
        return rc;
    for (;;) {
        rc = phi_node_receive(socket, answer, fd);
        if (rc == -EAGAIN && (rc = wait_for(socket, POLLIN, deadline)) == 0)
            continue;
        if (rc)
            return rc;
        // An answer to a call that timed out before belongs to nobody any more.
        if (answer->type == request->type && answer->call == request->call)
            return 0;
        if (*fd >= 0)
            close(*fd);
        *fd = -1;
        if (phi_now() >= deadline) // however many of them there are
            return -ETIMEDOUT;
    }
}
