// SPDX-License-Identifier: BSD-3-Clause
// Segments: a file that a peer made. What is opened can be read to its last word.
//
// Input: descriptor or 0 for a file of the header that follows; seals, size of the file, header.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"
#include "semaphore/segment.h"

enum { NONCE = 0x77, SIZE_MOST = 1 << 20 };

static int make_file(struct input *input)
{
    int seals = (int)take(input, 1) & (F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW);
    uint64_t size = take(input, 4) % SIZE_MOST;
    int fd = memfd_create("segment", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    HOLD(fd >= 0);
    if (input->left > 0)
        HOLD(write(fd, input->at, input->left) >= 0);
    HOLD(ftruncate(fd, (off_t)size) == 0 && fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
}

static void touch(struct phi_segment *segment)
{
    const uint32_t last = segment->capacity - 1;

    for (int side = 0; side < 2; side++) {
        atomic_load(&phi_segment_side(segment, side)->state);
        atomic_load(&phi_segment_line(segment, side, last)->word[PHI_WORD_NOTE]);
        atomic_load(&phi_segment_slot(segment, side, last)->released);
        atomic_load(phi_segment_word(segment, side, last, 1));
        atomic_fetch_add(phi_segment_confirm(segment, side, last), 1);
    }
    HOLD((char *)(phi_segment_confirm(segment, 1, last) + 1) <=
         (char *)segment->base + segment->size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {data, size};
    unsigned which = (unsigned)take(&input, 1);
    int fd = which ? descriptor(which) : make_file(&input);
    struct phi_segment *segment;

    if (phi_segment_open(&fuzz_context()->report, fd, NONCE, &segment) == 0) {
        touch(segment);
        phi_segment_close(segment);
    }
    if (fd >= 0)
        HOLD(fcntl(fd, F_GETFD) == -1); // taken over in any case
    return 0;
}
