// SPDX-License-Identifier: BSD-3-Clause
// Pieces of memory files. Allocations share files: a process has few descriptors, and an allocation
// needs none of its own. A file is large and sparse, and gives each of its bytes to one piece only,
// as long as it has pieces: a peer that still maps a former piece never sees another one there.
#ifndef PHI_MEMORY_PIECE_H
#define PHI_MEMORY_PIECE_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "base/report.h"

struct phi_file;

// The files of one context. The lock guards their members and those of their pieces.
struct phi_files {
    pthread_mutex_t lock;
    struct phi_file *current; // gives pieces; NULL: none
};

// Whole pages of a memory file. The mapping in this process and each export hold the piece. When
// none does, no peer maps it any more, and the system gets its pages back.
struct phi_piece {
    struct phi_files *files;
    struct phi_file *file;
    uint64_t offset;
    size_t size;
    uint32_t holders;
};

void phi_files_init(struct phi_files *files);

// phi_files_fini: nobody holds a piece any more.
void phi_files_fini(struct phi_files *files);

// phi_piece_new gives zeroed memory of size bytes (whole pages). The caller holds it. -ENOMEM,
// -EMFILE, -ENFILE (reported).
int phi_piece_new(struct phi_files *files, struct phi_report *report, size_t size,
                  struct phi_piece **piece);

// phi_piece_of_file makes a piece of a caller's file, whose descriptor becomes the piece's. -ENOMEM
// (reported; fd stays the caller's).
int phi_piece_of_file(struct phi_files *files, struct phi_report *report, int fd, uint64_t offset,
                      size_t size, struct phi_piece **piece);

// phi_piece_fd is the descriptor of the piece's file, which stays the file's. It is good as long as
// somebody holds the piece.
int phi_piece_fd(const struct phi_piece *piece);

void phi_piece_hold(struct phi_piece *piece);

// phi_piece_drop lets a piece go. NULL is fine.
void phi_piece_drop(struct phi_piece *piece);

#endif
