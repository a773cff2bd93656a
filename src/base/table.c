// SPDX-License-Identifier: BSD-3-Clause
#include "base/table.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/config.h"

enum { FIELDS = 5, FILE_MAX = 1 << 20 };

// The state of a parse, which makes one line of the table after the other.
struct reader {
    struct phi_report *report;
    const char *name;
    size_t number;
    size_t room; // of the table
    char text[512];
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static int refuse(const struct reader *reader, const char *what, const char *word)
{
    return phi_fail(reader->report, -EINVAL, "table %s, line %zu: %s%s%s%s", reader->name,
                    reader->number, what, *word ? " '" : "", word, *word ? "'" : "");
}

// split ends the words of a line in place. It returns how many there are. FIELDS + 1: more than
// FIELDS. -1: a quote is left open, or stands inside a word.
static int split(char *text, char *words[FIELDS])
{
    int count = 0;

    while (is_blank(*text))
        text++;
    while (*text && *text != '#') {
        bool quoted = *text == '"';
        char *word = text += quoted;

        text += strcspn(text, quoted ? "\"" : " \t\r#\"");
        if ((*text == '"') != quoted)
            return -1;
        if (count == FIELDS)
            return FIELDS + 1;
        words[count++] = word;
        char end = *text;
        *text = 0;
        if (end == 0 || end == '#')
            break;
        text++;
        if (quoted && *text && *text != '#' && !is_blank(*text))
            return -1;
        while (is_blank(*text))
            text++;
    }
    return count;
}

static bool parse_size(const char *text, int64_t most, int64_t *size)
{
    static const char units[] = "kmg";
    size_t digits = strspn(text, "0123456789");
    const char *unit = strchr(units, tolower((unsigned char)text[digits]));
    int shift = text[digits] && unit ? 10 * (int)(unit - units + 1) : 0;

    if (digits == 0 || !unit || (text[digits] && text[digits + 1]))
        return false;
    errno = 0;
    long long value = strtoll(text, NULL, 10);
    if (errno || value > most >> shift)
        return false;
    *size = (int64_t)value << shift;
    return true;
}

static int take_name(const struct reader *reader, const char *word, char *name, size_t size)
{
    if (*word == 0)
        return refuse(reader, "a device without a name (* is any)", "");
    if (strlen(word) >= size)
        return refuse(reader, "no device has so long a name:", word);
    memcpy(name, word, strlen(word) + 1);
    return 0;
}

// parse_line leaves *line as it is and sets *found to false where the text has no line.
static int parse_line(struct reader *reader, struct phi_table_line *line, bool *found)
{
    char *words[FIELDS];
    int count = split(reader->text, words);
    line->wide = count == FIELDS && strcmp(words[FIELDS - 1], "wide") == 0;

    *found = count != 0;
    if (count == 0)
        return 0;
    if (count < 0)
        return refuse(reader, "a name in quotes has one at both ends", "");
    if (count != FIELDS - !line->wide)
        return refuse(
            reader, "must be: own device, peer's device, ll_max, sm_max, and wide or nothing", "");
    int rc = take_name(reader, words[0], line->own, sizeof(line->own));
    if (rc == 0)
        rc = take_name(reader, words[1], line->peer, sizeof(line->peer));
    if (rc)
        return rc;
    if (!parse_size(words[2], PHI_TABLE_LL_MAX, &line->limits.ll_max))
        return refuse(reader, "ll_max is a size from 0 to 1M, not", words[2]);
    if (line->limits.ll_max > PHI_TABLE_LL && !line->wide)
        return refuse(reader,
                      "ll_max of more than 8K needs `wide` at the end of the line (lines of 128 "
                      "bytes come whole), for",
                      words[2]);
    if (strcmp(words[3], "all") == 0)
        line->limits.sm_max = PHI_TABLE_ALL;
    else if (!parse_size(words[3], PHI_TABLE_ALL, &line->limits.sm_max))
        return refuse(reader, "sm_max is a size (with K, M or G) or all, not", words[3]);
    return 0;
}

static int take_line(struct reader *reader, const char *text, size_t size, struct phi_table *table)
{
    struct phi_table_line line = {0};
    bool found;

    if (size >= sizeof(reader->text) || memchr(text, 0, size))
        return refuse(reader, "is no text, or too long", "");
    memcpy(reader->text, text, size);
    reader->text[size] = 0;
    int rc = parse_line(reader, &line, &found);
    if (rc || !found)
        return rc;
    struct phi_table_line *more =
        phi_array_grow(table->lines, table->count, &reader->room, sizeof(*more));
    if (!more)
        return phi_fail(reader->report, -ENOMEM, "no memory for the table %s", reader->name);
    table->lines = more;
    table->lines[table->count++] = line;
    return 0;
}

int phi_table_parse(const char *name, const char *text, size_t size, struct phi_report *report,
                    struct phi_table *table)
{
    struct reader reader = {.report = report, .name = name};
    struct phi_table fresh = {0};
    int rc = 0;

    // Some editors put this mark before a text in UTF-8.
    if (size >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) {
        text += 3;
        size -= 3;
    }
    while (size > 0 && rc == 0) {
        const char *end = memchr(text, '\n', size);
        size_t length = end ? (size_t)(end - text) : size;

        reader.number++;
        rc = take_line(&reader, text, length, &fresh);
        length += end != NULL;
        text += length;
        size -= length;
    }
    if (rc)
        phi_table_fini(&fresh);
    else
        *table = fresh;
    return rc;
}

// O_NONBLOCK: a pipe of that name must not hold us.
static int open_regular(const char *file)
{
    struct stat status = {0};
    int fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int rc = fd < 0 || fstat(fd, &status) ? -errno : 0;

    if (rc == 0 && !S_ISREG(status.st_mode))
        rc = S_ISDIR(status.st_mode) ? -EISDIR : -EINVAL;
    if (rc == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return rc;
}

static int read_all(int fd, char *text, size_t room, size_t *size)
{
    for (*size = 0; *size < room;) {
        ssize_t got = read(fd, text + *size, room - *size);

        if (got < 0)
            return -errno;
        if (got == 0)
            return 0;
        *size += (size_t)got;
    }
    return -EFBIG;
}

static int read_file(const char *file, char *text, size_t room, size_t *size)
{
    int fd = open_regular(file);
    int rc = fd < 0 ? fd : read_all(fd, text, room, size);

    if (fd >= 0)
        close(fd);
    return rc;
}

int phi_table_read(const char *file, struct phi_report *report, struct phi_table *table)
{
    char *text = malloc(FILE_MAX);
    size_t size;
    int rc = text ? read_file(file, text, FILE_MAX, &size) : -ENOMEM;

    if (rc)
        phi_fail(report, rc, "the table %s (PEERHOP_TABLE) cannot be read: %s", file,
                 ph_strerror(rc));
    else
        rc = phi_table_parse(file, text, size, report, table);
    free(text);
    return rc;
}

void phi_table_fini(struct phi_table *table)
{
    free(table->lines);
    *table = (struct phi_table){0};
}

static bool fits(const char *wanted, const char *name)
{
    return strcmp(wanted, "*") == 0 || strcmp(wanted, name) == 0;
}

// docs/measurements/2026-11-24.md, "Wide lines": measured over NVLink. Nobody has seen that wide
// lines come whole between other pairs. Lines of 8 bytes take twice the bytes, and a slower link
// may have none to spare.
static const struct phi_table_line measured[] = {
    {"NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3", {1 << 20, PHI_TABLE_ALL}, true},
    {"NVIDIA H200", "NVIDIA H200", {1 << 20, PHI_TABLE_ALL}, true},
};
static const struct phi_table_line unknown = {"*", "*", {PHI_TABLE_LL, PHI_TABLE_ALL}, false};

// The first line that fits, or NULL.
static const struct phi_table_line *find(const struct phi_table_line *lines, size_t n,
                                         struct phi_table_pair pair)
{
    for (size_t i = 0; i < n; i++)
        if (fits(lines[i].own, pair.own) && fits(lines[i].peer, pair.peer))
            return &lines[i];
    return NULL;
}

static const struct phi_table_line *find_measured(struct phi_table_pair pair)
{
    const struct phi_table_line *line = find(measured, sizeof(measured) / sizeof(*measured), pair);
    return line && !pair.bus ? line : &unknown;
}

static const struct phi_table_line *find_in(const struct phi_table *table,
                                            struct phi_table_pair pair)
{
    return table ? find(table->lines, table->count, pair) : NULL;
}

bool phi_table_wide(const struct phi_table *table, struct phi_table_pair pair)
{
    const struct phi_table_line *line = find_in(table, pair);
    return (line != NULL && line->wide) || find_measured(pair)->wide;
}

struct phi_limits phi_table_limits(const struct phi_table *table, const struct phi_config *config,
                                   struct phi_table_pair pair)
{
    const struct phi_table_line *line = find_in(table, pair);
    if (line == NULL)
        line = find_measured(pair);
    struct phi_limits limits = line->limits;
    if (config->ll_max >= 0)
        limits.ll_max = config->ll_max;
    if (config->sm_max >= 0)
        limits.sm_max = config->sm_max;
    if (limits.ll_max > PHI_TABLE_LL && !phi_table_wide(table, pair))
        limits.ll_max = PHI_TABLE_LL;
    return limits;
}
