// SPDX-License-Identifier: BSD-3-Clause
#include "tagged.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    LINE_SIZE = 16384,
    TAG_SIZE = 24,
    OWN_ROOM = 128 << 10, // of an output, for the launcher's own sentences: some for each rank
};

int tagged_open(struct tagged *stream, int rank, struct output *out, int *end)
{
    int ends[2];

    *stream = (struct tagged){.fd = -1, .rank = rank, .out = out, .line = malloc(LINE_SIZE)};
    if (!stream->line || pipe2(ends, O_CLOEXEC) < 0)
        return -errno;
    stream->fd = ends[0];
    *end = ends[1];
    fcntl(stream->fd, F_SETFL, O_NONBLOCK);
    return 0;
}

static bool has_room(const struct tagged *stream)
{
    return output_fits(stream->out, LINE_SIZE + TAG_SIZE, OWN_ROOM);
}

bool tagged_ready(const struct tagged *stream)
{
    return stream->fd >= 0 && has_room(stream);
}

// Only where there is room for it.
static void print_line(const struct tagged *stream, size_t length)
{
    char text[LINE_SIZE + TAG_SIZE];
    int tag = snprintf(text, sizeof(text), "[%d] ", stream->rank);

    memcpy(text + tag, stream->line, length);
    text[(size_t)tag + length] = '\n';
    output_put(stream->out, text, (size_t)tag + length + 1, OWN_ROOM);
}

static void print_lines(struct tagged *stream)
{
    char *newline;

    while (has_room(stream) && (newline = memchr(stream->line, '\n', stream->length))) {
        size_t length = (size_t)(newline - stream->line);

        print_line(stream, length);
        stream->length -= length + 1;
        memmove(stream->line, newline + 1, stream->length);
    }
    if (stream->length == LINE_SIZE && has_room(stream)) {
        print_line(stream, stream->length);
        stream->length = 0;
    }
}

void tagged_end(struct tagged *stream)
{
    print_lines(stream);
    // Room may come at any moment: what print_lines had none for is left to the next call.
    if (memchr(stream->line, '\n', stream->length) || !has_room(stream))
        return;
    if (stream->length > 0)
        print_line(stream, stream->length);
    stream->length = 0;
    close(stream->fd);
    stream->fd = -1;
}

void tagged_read(struct tagged *stream)
{
    ssize_t n = 1;

    print_lines(stream); // for which there was no room
    // Once: a rank that writes without end must not keep us from all else.
    if (stream->length < LINE_SIZE && has_room(stream)) {
        n = read(stream->fd, stream->line + stream->length, LINE_SIZE - stream->length);
        stream->length += n > 0 ? (size_t)n : 0;
        print_lines(stream);
    }
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)))
        return;
    tagged_end(stream);
}
