// SPDX-License-Identifier: BSD-3-Clause
#include "store/uri.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { PASSWORD_MAX = 1024, DB_MAX = 65535 };

static int bad(struct phi_report *report, const char *why)
{
    phi_fail(report, -EINVAL,
             "the store's URI is wrong: %s; it must be redis://[user:password@]host[:port][/db], "
             "unix:///path[?db=N] or file:/directory",
             why);
    return -EINVAL;
}

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// decode copies a part without its percent signs. NULL with errno; EINVAL: a wrong escape, or an
// encoded zero.
static char *decode(const char *from, size_t size)
{
    char *text = malloc(size + 1);
    if (!text)
        return NULL;
    char *to = text;
    for (size_t i = 0; i < size; i++, to++) {
        *to = from[i];
        if (from[i] != '%')
            continue;
        int high = i + 2 < size ? hex(from[i + 1]) : -1;
        int low = high >= 0 ? hex(from[i + 2]) : -1;
        if (low < 0 || high * 16 + low == 0) {
            free(text);
            errno = EINVAL;
            return NULL;
        }
        *to = (char)(high * 16 + low);
        i += 2;
    }
    *to = 0;
    return text;
}

static int decode_into(char **out, const char *from, size_t size, struct phi_report *report)
{
    *out = decode(from, size);
    if (*out)
        return 0;
    if (errno == EINVAL)
        return bad(report, "a percent sign must be followed by two hexadecimal digits, not 00");
    phi_fail(report, -ENOMEM, "no memory for the store's URI");
    return -ENOMEM;
}

// number parses decimal digits up to `most`; -1 if it is not that.
static int number(const char *from, size_t size, int most)
{
    int value = 0;
    if (size == 0 || size > 6)
        return -1;
    for (size_t i = 0; i < size; i++) {
        if (from[i] < '0' || from[i] > '9')
            return -1;
        value = value * 10 + from[i] - '0';
    }
    return value <= most ? value : -1;
}

static int parse_user(struct phi_store_uri *uri, const char *from, size_t size,
                      struct phi_report *report)
{
    const char *colon = memchr(from, ':', size);
    size_t user = colon ? (size_t)(colon - from) : size;
    int result = 0;
    if (user > 0)
        result = decode_into(&uri->user, from, user, report);
    if (result == 0 && colon && user + 1 < size)
        result = decode_into(&uri->password, colon + 1, size - user - 1, report);
    return result;
}

static int parse_port(struct phi_store_uri *uri, const char *from, size_t size,
                      struct phi_report *report)
{
    int port = size ? number(from + 1, size - 1, 65535) : 6379;
    if ((size && from[0] != ':') || port < 1)
        return bad(report, "the port is not a number from 1 to 65535");
    snprintf(uri->port, sizeof(uri->port), "%d", port);
    return 0;
}

static int parse_host(struct phi_store_uri *uri, const char *from, size_t size,
                      struct phi_report *report)
{
    const char *end;
    if (size && from[0] == '[') {
        end = memchr(from, ']', size);
        if (!end)
            return bad(report, "a [ without ]");
        from++, size--;
    } else {
        end = memchr(from, ':', size);
    }
    size_t host = end ? (size_t)(end - from) : size;
    if (host == 0)
        return bad(report, "it names no host");
    int result = decode_into(&uri->host, from, host, report);
    if (result)
        return result;
    bool bracket = end && *end == ']';
    host += bracket;
    return parse_port(uri, from + host, size - host, report);
}

static int parse_db(struct phi_store_uri *uri, const char *text, struct phi_report *report)
{
    uri->db = number(text, strlen(text), DB_MAX);
    return uri->db < 0 ? bad(report, "the db is not a number") : 0;
}

static int parse_redis(struct phi_store_uri *uri, const char *rest, size_t authority,
                       struct phi_report *report)
{
    int result = parse_host(uri, rest, authority, report);
    const char *db = rest + authority;
    if (result == 0 && db[0] && db[0] != '/')
        result = bad(report, "it has no parameters");
    if (result == 0 && db[0] && db[1])
        result = parse_db(uri, db + 1, report);
    if (result)
        return result;
    bool colon = strchr(uri->host, ':');
    snprintf(uri->address, sizeof(uri->address), "redis://%s%.100s%s:%s/%d", colon ? "[" : "",
             uri->host, colon ? "]" : "", uri->port, uri->db);
    return 0;
}

static int parse_unix(struct phi_store_uri *uri, const char *rest, size_t authority,
                      struct phi_report *report)
{
    const char *path = rest + authority;
    const char *query = strchr(path, '?');
    if (authority > 0 || path[0] != '/' || path[1] == 0)
        return bad(report, "unix:// must be followed by an absolute path");
    int result =
        decode_into(&uri->path, path, query ? (size_t)(query - path) : strlen(path), report);
    if (result)
        return result;
    if (strlen(uri->path) >= sizeof(((struct sockaddr_un *)0)->sun_path))
        return bad(report, "the path is longer than a unix socket's may be");
    if (query && strncmp(query, "?db=", 4) != 0)
        return bad(report, "the only parameter is db");
    if (query)
        result = parse_db(uri, query + 4, report);
    if (result)
        return result;
    char db[16] = "";
    if (uri->db)
        snprintf(db, sizeof(db), "?db=%d", uri->db);
    char address[sizeof(uri->address)];
    snprintf(address, sizeof(address), "unix://%s%s", uri->path, db); // a socket's path is shorter
    memcpy(uri->address, address, sizeof(address));
    return 0;
}

// parse_file takes file:/path, and file:///path, in which the empty host is this one. The last name
// must be the directory's own: the checks are of that directory.
static int parse_file(struct phi_store_uri *uri, const char *rest, struct phi_report *report)
{
    if (strncmp(rest, "//", 2) == 0)
        rest += 2;
    if (rest[0] != '/')
        return bad(report, "file: must be followed by the absolute path of a directory");
    if (rest[strcspn(rest, "?#")])
        return bad(report, "it has no parameters");
    size_t size = strlen(rest);
    while (size > 0 && rest[size - 1] == '/')
        size--;
    int result = decode_into(&uri->directory, rest, size, report);
    if (result)
        return result;
    const char *name = strrchr(uri->directory, '/');
    if (!name || !name[1] || strcmp(name, "/.") == 0 || strcmp(name, "/..") == 0)
        return bad(report, "its path must end with the name of a directory");
    char address[sizeof(uri->address)];
    snprintf(address, sizeof(address), "file:%.150s", uri->directory);
    memcpy(uri->address, address, sizeof(address));
    return 0;
}

static int parse(struct phi_store_uri *uri, const char *text, struct phi_report *report)
{
    bool redis = strncmp(text, "redis://", 8) == 0;
    if (strncmp(text, "rediss://", 9) == 0)
        return bad(report, "TLS is not supported");
    if (strncmp(text, "file:", 5) == 0)
        return parse_file(uri, text + 5, report);
    if (!redis && strncmp(text, "unix://", 7) != 0)
        return bad(report, "the scheme is none of redis, unix and file");
    const char *rest = text + (redis ? 8 : 7);
    size_t authority = strcspn(rest, "/?#");
    const char *at = memrchr(rest, '@', authority);
    if (at) {
        int result = parse_user(uri, rest, (size_t)(at - rest), report);
        if (result)
            return result;
        authority -= (size_t)(at + 1 - rest);
        rest = at + 1;
    }
    return redis ? parse_redis(uri, rest, authority, report)
                 : parse_unix(uri, rest, authority, report);
}

static void wipe(char **text)
{
    if (*text)
        explicit_bzero(*text, strlen(*text));
    free(*text);
    *text = NULL;
}

void phi_store_uri_fini(struct phi_store_uri *uri)
{
    free(uri->host);
    free(uri->path);
    free(uri->directory);
    free(uri->user);
    wipe(&uri->password);
    *uri = (struct phi_store_uri){0};
}

int phi_store_uri_parse(struct phi_store_uri *uri, const char *text, struct phi_report *report)
{
    struct phi_store_uri read = {0};
    int result = parse(&read, text, report);
    if (result)
        phi_store_uri_fini(&read);
    else
        *uri = read;
    return result;
}

int phi_store_uri_password(struct phi_store_uri *uri, const char *password,
                           struct phi_report *report)
{
    char *copy = strdup(password);
    if (!copy)
        return phi_fail(report, -ENOMEM, "no memory for the store's password");
    wipe(&uri->password);
    uri->password = copy;
    return 0;
}

// check_file tells why a password in this file is nobody's secret, or may be anybody's.
static const char *check_file(int fd)
{
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return "it is no regular file";
    if (st.st_uid != geteuid() && st.st_uid != 0)
        return "it is another user's";
    mode_t others = st.st_uid == 0 ? S_IWGRP | S_IRWXO : S_IRWXG | S_IRWXO;
    return st.st_mode & others ? "others may read or write it (chmod 600)" : NULL;
}

// open_file: O_NONBLOCK, as a pipe of that name must not hold us.
static int open_file(const char *file, struct phi_report *report, FILE **in)
{
    int fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const char *wrong = fd < 0 ? NULL : check_file(fd);
    int result = fd < 0 ? -errno : wrong ? -EACCES : 0;
    if (result == 0 && !(*in = fdopen(fd, "r")))
        result = -ENOMEM;
    if (result == 0)
        return 0;
    if (fd >= 0)
        close(fd);
    return phi_fail(report, result, "the store's password file %s: %s", file,
                    wrong ? wrong : ph_strerror(result));
}

int phi_store_uri_password_file(struct phi_store_uri *uri, const char *file,
                                struct phi_report *report)
{
    FILE *in;
    int result = open_file(file, report, &in);
    if (result)
        return result;
    char line[PASSWORD_MAX + 2];
    setvbuf(in, NULL, _IONBF, 0); // no copy of it in a buffer that is freed as it is
    bool read = fgets(line, sizeof(line), in) != NULL;
    fclose(in);
    if (!read)
        return phi_fail(report, -EINVAL, "the store's password file %s is empty", file);
    size_t size = strcspn(line, "\r\n");
    line[size] = 0;
    if (size > 0 && size <= PASSWORD_MAX)
        result = phi_store_uri_password(uri, line, report);
    else
        result = phi_fail(report, -EINVAL,
                          "the store's password file %s: its first line must have 1 to %d bytes",
                          file, PASSWORD_MAX);
    explicit_bzero(line, sizeof(line));
    return result;
}
