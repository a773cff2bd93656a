// SPDX-License-Identifier: BSD-3-Clause
#include "memory/piece.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "memory/memfd.h"

// A sparse file takes no memory but for the pages that are used.
#define FILE_BYTES (UINT64_C(1) << 36)
// Larger pieces have a file of their own.
#define LARGEST (FILE_BYTES / 4)
// The pages of pieces that are at least so large can be huge ones, where the system makes them.
#define HUGE_BYTES (UINT64_C(1) << 21)

struct phi_file {
    int fd;
    bool shared;  // gives more than one piece
    bool stained; // some pages could not be given back, so that they are not zeros
    uint32_t pieces;
    uint64_t size, used;
};

void phi_files_init(struct phi_files *files)
{
    pthread_mutex_init(&files->lock, NULL);
    files->current = NULL;
}

static void close_file(struct phi_file *file)
{
    close(file->fd);
    free(file);
}

void phi_files_fini(struct phi_files *files)
{
    if (files->current)
        close_file(files->current);
    pthread_mutex_destroy(&files->lock);
}

static uint64_t align(uint64_t at, uint64_t size)
{
    return size < HUGE_BYTES ? at : (at + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
}

static struct phi_file *new_file(struct phi_report *report, uint64_t size, bool shared, int *rc)
{
    struct phi_file *file = calloc(1, sizeof *file);
    if (file == NULL) {
        *rc = phi_fail(report, -ENOMEM, "no memory for one more piece of host memory");
        return NULL;
    }
    *file = (struct phi_file){.shared = shared, .size = size};
    *rc = phi_memfd_create(report, "peerhop-host", size, &file->fd);
    if (*rc == 0)
        return file;
    free(file);
    return NULL;
}

// Returns a file with room for the size, or NULL. With the lock.
static struct phi_file *file_for(struct phi_files *files, struct phi_report *report, size_t size,
                                 int *rc)
{
    struct phi_file *current = files->current;
    const uint64_t most = phi_memfd_largest() < FILE_BYTES ? phi_memfd_largest() : FILE_BYTES;
    if (size > LARGEST || size > most)
        return new_file(report, size, false, rc);
    // Nobody has any of its pieces, and all of its bytes are zeros again.
    if (current && current->pieces == 0 && !current->stained)
        current->used = 0;
    if (current && align(current->used, size) <= current->size &&
        size <= current->size - align(current->used, size))
        return current;
    struct phi_file *file = new_file(report, most, true, rc);
    if (file == NULL)
        return NULL;
    if (current && current->pieces == 0)
        close_file(current); // else its last piece does
    files->current = file;
    return file;
}

static struct phi_piece *cut(struct phi_files *files, struct phi_file *file, uint64_t offset,
                             size_t size)
{
    struct phi_piece *piece = malloc(sizeof *piece);
    if (piece == NULL)
        return NULL;
    *piece = (struct phi_piece){
        .files = files, .file = file, .offset = offset, .size = size, .holders = 1};
    file->pieces++;
    file->used = offset + size;
    return piece;
}

int phi_piece_new(struct phi_files *files, struct phi_report *report, size_t size,
                  struct phi_piece **piece)
{
    int rc = 0;
    pthread_mutex_lock(&files->lock);
    struct phi_file *file = file_for(files, report, size, &rc);
    struct phi_piece *made =
        file ? cut(files, file, file->shared ? align(file->used, size) : 0, size) : NULL;
    if (file && made == NULL) {
        rc = phi_fail(report, -ENOMEM, "no memory for one more piece of host memory");
        if (!file->shared)
            close_file(file);
    }
    pthread_mutex_unlock(&files->lock);
    if (rc == 0)
        *piece = made;
    return rc;
}

int phi_piece_of_file(struct phi_files *files, struct phi_report *report, int fd, uint64_t offset,
                      size_t size, struct phi_piece **piece)
{
    struct phi_file *file = calloc(1, sizeof *file);
    struct phi_piece *made = file ? cut(files, file, offset, size) : NULL;
    if (made == NULL) {
        free(file);
        return phi_fail(report, -ENOMEM, "no memory for one more piece of host memory");
    }
    file->fd = fd;
    *piece = made;
    return 0;
}

int phi_piece_fd(const struct phi_piece *piece)
{
    return piece->file->fd;
}

void phi_piece_hold(struct phi_piece *piece)
{
    pthread_mutex_lock(&piece->files->lock);
    piece->holders++;
    pthread_mutex_unlock(&piece->files->lock);
}

// Gives the pages of a shared file back. The bytes of a caller's own file stay.
static void give_back(const struct phi_piece *piece)
{
    int rc;
    do
        rc = fallocate(piece->file->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                       (off_t)piece->offset, (off_t)piece->size);
    while (rc && errno == EINTR);
    piece->file->stained = piece->file->stained || rc;
}

void phi_piece_drop(struct phi_piece *piece)
{
    if (piece == NULL)
        return;
    struct phi_files *files = piece->files;
    struct phi_file *file = piece->file;
    pthread_mutex_lock(&files->lock);
    const bool last = --piece->holders == 0;
    if (last && file->shared)
        give_back(piece);
    if (last && --file->pieces == 0 && file != files->current)
        close_file(file);
    pthread_mutex_unlock(&files->lock);
    if (last)
        free(piece);
}
