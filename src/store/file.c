// SPDX-License-Identifier: BSD-3-Clause
// The files of a directory are the keys of a store. A value is written to a file without a name, or
// to one with a name of its own where the system has no nameless files. Then it is linked to the
// name of its key. So a reader that finds a key finds it whole, and of two ranks that set one, one
// does.
#include "store/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/random.h"
#include "store/uri.h"

enum {
    KEY_MAX = 200,
    NAME_SIZE = KEY_MAX + 2, // a file's name: MARK, the key
    VALUE_MAX = 64 << 20,    // far more than any value has
    LOOK_MS = 100,           // between looks, whatever was told or not
    PAUSE_FIRST = 1,         // ms of sleep between looks, where nothing tells; twice as much each
    PAUSE_MOST = 32,         // time, up to this
    LINK_TRIES = 8,          // of setting a key that another sets and removes meanwhile
};

// A file of a key never begins with a point, as hidden names and those that are not linked yet do.
#define MARK '='
// This stands for the one character of a key that no file's name can have. Keys have no control
// characters.
#define SLASH '\x1f'

struct phi_file_store {
    struct phi_report *report;
    int directory;
    int notify; // inotify, for the one thread that waits; -1: not to be had
    int wake;   // -1: nobody listens
    bool (*concerns)(void *opaque, const char *key);
    void *opaque;
    char gone[200]; // that the directory is, in words
};

// ---- names

static int name_of(const char *key, char name[NAME_SIZE])
{
    size_t size = strnlen(key, KEY_MAX + 1);
    if (size == 0 || size > KEY_MAX)
        return -EINVAL;
    name[0] = MARK;
    for (size_t i = 0; i < size; i++) {
        if (key[i] < 0x20 || key[i] > 0x7e)
            return -EINVAL;
        name[i + 1] = key[i];
        if (key[i] == '/')
            name[i + 1] = SLASH;
    }
    name[size + 1] = 0;
    return 0;
}

// key_of: false where it is not the name of a key.
static bool key_of(const char *name, char key[NAME_SIZE])
{
    size_t size = strlen(name);
    if (name[0] != MARK || size > KEY_MAX + 1)
        return false;
    for (size_t i = 0; i < size; i++) {
        key[i] = name[i + 1];
        if (key[i] == SLASH)
            key[i] = '/';
    }
    return true;
}

// ---- one look

// open_in goes on after a signal of the application's.
static int open_in(const struct phi_file_store *store, const char *name, int flags)
{
    int fd;
    do
        fd = openat(store->directory, name, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
    while (fd < 0 && errno == EINTR);
    return fd;
}

// absent is the result where a name was not found.
static int absent(const struct phi_file_store *store)
{
    struct stat st;
    if (fstat(store->directory, &st) != 0)
        return -errno;
    return st.st_nlink > 0 ? -ENOENT : -ESTALE;
}

static int read_all(int fd, uint8_t *bytes, size_t size)
{
    for (size_t got = 0; got < size;) {
        ssize_t n = read(fd, bytes + got, size - got);
        if (n <= 0 && !(n < 0 && errno == EINTR))
            return n < 0 ? -errno : -EIO;
        got += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

static int read_value(int fd, void **value, size_t *size)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return -EBADMSG;
    if (st.st_size > VALUE_MAX)
        return -EFBIG;
    size_t all = (size_t)st.st_size;
    uint8_t *bytes = malloc(all ? all : 1);
    if (!bytes)
        return -ENOMEM;
    int result = read_all(fd, bytes, all);
    if (result) {
        free(bytes);
        return result;
    }
    *value = bytes;
    *size = all;
    return 0;
}

// look: -ENOENT: not there.
static int look(const struct phi_file_store *store, const char *name, void **value, size_t *size)
{
    // O_NONBLOCK: a pipe of that name must not hold us.
    int fd = open_in(store, name, O_RDONLY | O_NONBLOCK);
    if (fd < 0)
        return errno == ENOENT ? absent(store) : -errno;
    int result = read_value(fd, value, size);
    close(fd);
    return result;
}

// ---- waiting

// The news, as far as they matter to a reader that waits for one name.
struct news {
    bool own;   // that name, or what is not known
    bool other; // what concerns the listener, or is not known
};

static void read_event(const struct phi_file_store *store, const struct inotify_event *event,
                       const char *name, struct news *news)
{
    char key[NAME_SIZE];
    if (event->mask & (IN_Q_OVERFLOW | IN_IGNORED | IN_UNMOUNT)) {
        news->own = true;
        news->other |= store->concerns && store->concerns(store->opaque, NULL);
    } else if (event->len > 0 && strcmp(event->name, name) == 0) {
        news->own = true;
    } else if (event->len > 0 && store->concerns && key_of(event->name, key)) {
        news->other |= store->concerns(store->opaque, key);
    }
}

// read_news takes all that inotify has told so far.
static struct news read_news(const struct phi_file_store *store, const char *name)
{
    _Alignas(struct inotify_event) char events[4096];
    struct news news = {0};
    ssize_t size;
    while ((size = read(store->notify, events, sizeof(events))) > 0)
        for (ssize_t at = 0; at < size;) {
            const struct inotify_event *event = (const struct inotify_event *)(events + at);
            read_event(store, event, name, &news);
            at += (ssize_t)(sizeof(*event) + event->len);
        }
    return news;
}

// watch waits until it is worth looking again; false: until the listener is to look elsewhere.
static bool watch(const struct phi_file_store *store, const char *name, int64_t deadline)
{
    struct pollfd told[2] = {{.fd = store->notify, .events = POLLIN},
                             {.fd = store->wake, .events = POLLIN}};
    const int64_t end = phi_deadline(LOOK_MS) < deadline ? phi_deadline(LOOK_MS) : deadline;
    struct news news = {0};
    while (!news.own && !news.other && phi_now() < end) {
        poll(told, 2, phi_remaining_ms(end));
        if (told[1].revents)
            return false;
        news = read_news(store, name);
    }
    return news.own || !news.other;
}

// pause_between is for a reader whom nothing tells of news. Results as of watch.
static bool pause_between(const struct phi_file_store *store, int *ms, int64_t deadline)
{
    struct pollfd wake = {.fd = store->wake, .events = POLLIN};
    int left = phi_remaining_ms(deadline);
    int n = poll(&wake, 1, left >= 0 && left < *ms ? left : *ms);
    *ms = *ms < PAUSE_MOST ? 2 * *ms : PAUSE_MOST;
    return n <= 0;
}

static int wait_for(const struct phi_file_store *store, const char *name, int64_t deadline,
                    void **value, size_t *size)
{
    const bool watches = store->notify >= 0;
    int pause = PAUSE_FIRST;
    // The look that follows sees all that was told before it.
    bool elsewhere = watches && read_news(store, name).other;
    for (;;) {
        int result = look(store, name, value, size);
        if (result != -ENOENT || elsewhere || phi_now() >= deadline)
            return result;
        elsewhere =
            watches ? !watch(store, name, deadline) : !pause_between(store, &pause, deadline);
    }
}

// ---- the callbacks

static int file_get(void *opaque, const char *key, void **value, size_t *size, int64_t ms)
{
    const struct phi_file_store *store = opaque;
    char name[NAME_SIZE];
    int result = name_of(key, name);
    if (result)
        return result;
    result = ms == 0 ? look(store, name, value, size)
                     : wait_for(store, name, phi_deadline(ms), value, size);
    return result == -ENOENT ? -ETIMEDOUT : result;
}

static int write_all(int fd, const uint8_t *bytes, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = write(fd, bytes + done, size - done);
        if (n < 0 && errno != EINTR)
            return -errno;
        done += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

static int write_new(const struct phi_file_store *store, const char *name, const void *value,
                     size_t size)
{
    int fd = open_in(store, name, O_WRONLY | O_CREAT | O_EXCL);
    if (fd < 0)
        return errno == ENOENT ? absent(store) : -errno;
    int result = write_all(fd, value, size);
    close(fd);
    if (result)
        unlinkat(store->directory, name, 0);
    return result;
}

// compare: 0 where a name has this value, -EEXIST where it has another.
static int compare(const struct phi_file_store *store, const char *name, const void *value,
                   size_t size)
{
    void *there = NULL;
    size_t there_size = 0;
    int result = look(store, name, &there, &there_size);
    if (result)
        return result;
    bool same = there_size == size && (size == 0 || memcmp(there, value, size) == 0);
    free(there);
    return same ? 0 : -EEXIST;
}

// A value that is in a file, and how that is named to linkat.
struct written {
    int directory;
    const char *path;
    int flags;
    const void *value;
    size_t size;
};

static int publish(const struct phi_file_store *store, const struct written *written,
                   const char *name)
{
    int result = -ENOENT;
    for (int tries = 0; tries < LINK_TRIES && result == -ENOENT; tries++) {
        if (linkat(written->directory, written->path, store->directory, name, written->flags) == 0)
            return 0;
        if (errno == EPERM)
            return -EOPNOTSUPP;
        if (errno != EEXIST)
            return errno == ENOENT ? absent(store) : -errno;
        result = compare(store, name, written->value, written->size);
    }
    return result == -ENOENT ? -EAGAIN : result;
}

// set_nameless: a reader that waits is told once, of the key. Nothing is left behind where this
// process is killed.
static int set_nameless(const struct phi_file_store *store, const char *name, const void *value,
                        size_t size)
{
    char path[40];
    int fd = open_in(store, ".", O_WRONLY | O_TMPFILE);
    if (fd < 0)
        return -errno;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int result = write_all(fd, value, size);
    if (result == 0)
        result =
            publish(store, &(struct written){AT_FDCWD, path, AT_SYMLINK_FOLLOW, value, size}, name);
    close(fd);
    return result;
}

static int set_named(const struct phi_file_store *store, const char *name, const void *value,
                     size_t size)
{
    char path[40];
    uint64_t random[2];
    phi_random(random, sizeof(random));
    snprintf(path, sizeof(path), ".%016llx%016llx", (unsigned long long)random[0],
             (unsigned long long)random[1]);
    int result = write_new(store, path, value, size);
    if (result)
        return result;
    result = publish(store, &(struct written){store->directory, path, 0, value, size}, name);
    unlinkat(store->directory, path, 0);
    return result == -ENOENT ? -EIO : result; // a name of ours that is gone: not "no such key"
}

static int file_set(void *opaque, const char *key, const void *value, size_t size, int64_t ms)
{
    const struct phi_file_store *store = opaque;
    char name[NAME_SIZE];
    (void)ms;
    int result = name_of(key, name);
    if (result)
        return result;
    if (size > VALUE_MAX)
        return -EFBIG;
    result = set_nameless(store, name, value, size);
    // The file system has no such files, or there is no /proc.
    return result == 0 || result == -EEXIST ? result : set_named(store, name, value, size);
}

static int file_remove(void *opaque, const char *key, int64_t ms)
{
    const struct phi_file_store *store = opaque;
    char name[NAME_SIZE];
    (void)ms;
    int result = name_of(key, name);
    if (result)
        return result;
    if (unlinkat(store->directory, name, 0) == 0)
        return 0;
    return errno == ENOENT ? absent(store) : -errno;
}

struct ph_store_callbacks phi_file_store_callbacks(struct phi_file_store *store)
{
    return (struct ph_store_callbacks){file_set, file_get, file_remove, store};
}

const char *phi_file_store_why(const struct phi_file_store *store, int result)
{
    if (result == -ESTALE)
        return store->gone;
    if (result == -EOPNOTSUPP)
        return "the file system of its directory has no hard links";
    if (result == -EEXIST)
        return "it was set before, to something else";
    return ph_strerror(result);
}

void phi_file_store_listen(struct phi_file_store *store, int wake,
                           bool (*concerns)(void *opaque, const char *key), void *opaque)
{
    store->wake = wake;
    store->concerns = concerns;
    store->opaque = opaque;
}

// ---- all keys

static void visit_name(const struct phi_file_store *store, const char *name, const char *prefix,
                       void (*visit)(void *opaque, const void *value, size_t size), void *opaque)
{
    char key[NAME_SIZE];
    void *value = NULL;
    size_t size = 0;
    if (!key_of(name, key) || strncmp(key, prefix, strlen(prefix)) != 0 ||
        look(store, name, &value, &size) != 0) // it may have been removed by now
        return;
    visit(opaque, value, size);
    free(value);
}

int phi_file_store_each(struct phi_file_store *store, const char *prefix,
                        void (*visit)(void *opaque, const void *value, size_t size), void *opaque)
{
    // A descriptor of our own: a copy would share the place in the list.
    int fd = open_in(store, ".", O_RDONLY | O_DIRECTORY);
    DIR *list = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *entry;
    if (!list) {
        int result = -errno;
        if (fd >= 0)
            close(fd);
        return phi_fail(store->report, result, "the store's directory cannot be listed: %s",
                        ph_strerror(result));
    }
    while ((entry = readdir(list)))
        visit_name(store, entry->d_name, prefix, visit, opaque);
    closedir(list);
    return 0;
}

// ---- open and close

bool phi_file_store_named(const char *uri)
{
    return strncmp(uri, "file:", 5) == 0;
}

// check_directory tells why others could read or write the files, or NULL.
static const char *check_directory(int fd)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return ph_strerror(-errno);
    if (st.st_uid != geteuid())
        return "it is another user's";
    return st.st_mode & (S_IRWXG | S_IRWXO) ? "others may enter or read it (chmod 700)" : NULL;
}

// open_directory checks the directory that it has opened: the path may lead to another one by then.
static int open_directory(const char *path, bool make, struct phi_report *report)
{
    if (make && mkdir(path, 0700) != 0 && errno != EEXIST)
        return phi_fail(report, -errno, "the store's directory %s cannot be made: %s", path,
                        ph_strerror(-errno));
    int fd;
    do
        fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    while (fd < 0 && errno == EINTR);
    // Linux says ENOTDIR of a symbolic link, too, where both flags are given.
    if (fd < 0 && (errno == ENOTDIR || errno == ELOOP))
        return phi_fail(report, -EINVAL,
                        "the store's directory %s: there is a symbolic link, or no directory",
                        path);
    if (fd < 0)
        return phi_fail(report, -errno, "the store's directory %s cannot be opened: %s", path,
                        ph_strerror(-errno));
    const char *wrong = check_directory(fd);
    if (!wrong)
        return fd;
    close(fd);
    return phi_fail(report, -EACCES, "the store's directory %s: %s", path, wrong);
}

// open_notify goes by the descriptor, as the path may lead elsewhere by now.
static int open_notify(const struct phi_file_store *store)
{
    char path[40];
    int notify = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", store->directory);
    if (notify >= 0 && inotify_add_watch(notify, path, IN_CREATE | IN_ONLYDIR) >= 0)
        return notify;
    phi_log(store->report, PH_LOG_INFO,
            "the store's directory is looked at again and again, for nothing tells what comes: "
            "inotify: %s",
            ph_strerror(-errno));
    if (notify >= 0)
        close(notify);
    return -1;
}

int phi_file_store_open(const char *uri, bool make, struct phi_report *report,
                        struct phi_file_store **out)
{
    struct phi_store_uri read = {0};
    int result = phi_store_uri_parse(&read, uri, report);
    if (result)
        return result;
    struct phi_file_store *store = calloc(1, sizeof(*store));
    if (!store) {
        result = phi_fail(report, -ENOMEM, "no memory for the store");
    } else {
        *store = (struct phi_file_store){.report = report, .wake = -1};
        store->directory = open_directory(read.directory, make, report);
        result = store->directory < 0 ? store->directory : 0;
        snprintf(store->gone, sizeof(store->gone), "its directory %.150s was removed",
                 read.directory);
    }
    phi_store_uri_fini(&read);
    if (result) {
        free(store);
        return result;
    }
    store->notify = open_notify(store);
    *out = store;
    return 0;
}

void phi_file_store_close(struct phi_file_store *store)
{
    if (!store)
        return;
    if (store->notify >= 0)
        close(store->notify);
    close(store->directory);
    free(store);
}
