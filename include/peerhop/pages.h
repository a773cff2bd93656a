// SPDX-License-Identifier: BSD-3-Clause
// Lists of pages: any number of pieces of the two buffers of a channel, by one call and on a GPU by
// one launch. Pages of a KV cache, strided and 2D copies, gather and scatter are such lists.
#ifndef PEERHOP_PAGES_H
#define PEERHOP_PAGES_H

#include <stddef.h>
#include <stdint.h>

#include <peerhop/channel.h>

#ifdef __cplusplus
extern "C" {
#endif

// Where the pages lie at one end of the channel. Row r of page i of part p lies at the offset
//
//     at[p] + number(i) * page_stride + r * row_stride
//
// of that end's buffer, where number(i) is numbers[i], or i without numbers.
struct ph_page_end {
    const uint64_t *at;   // `parts` offsets in bytes, in host memory; NULL: 0 for each. Read by the
                          // call
    uint64_t page_stride; // bytes; 0: all pages lie at one place
    uint64_t row_stride;  // bytes; of no matter where rows is 1
    // `pages` integers of number_bytes each, or NULL. In a device context they may lie in memory of
    // the device or in pinned memory: then the kernel reads them, in the order of the stream, and
    // at each replay of a graph. They stay until the operation is done (of a graph: as long as it
    // lives). Numbers in other memory are read by the call.
    const void *numbers;
    uint32_t number_bytes; // 4 or 8; 0 without numbers
};

// A list of pages. Clear it first (= {0}), and set struct_size to its sizeof.
struct ph_pages {
    size_t struct_size;
    uint32_t pages;        // how many the list has, at most
    const uint32_t *count; // how many of them there are: read as numbers are; more than `pages` is
                           // `pages`. NULL: all
    uint32_t parts;        // each page has so many, e.g. keys and values of each layer; >= 1
    uint32_t rows;         // of a part of a page; >= 1
    uint64_t row_bytes;    // that follow one another; 0 copies nothing
    struct ph_page_end local, peer;
    uint32_t blocks; // of the kernel, at most; 0: PEERHOP_PAGE_BLOCKS; over 1024 is 1024
};

// ph_put_pages copies the pages of a list from this rank's buffer to the peer's; ph_get_pages from
// the peer's to this rank's. They are otherwise as ph_put and ph_get: the peer learns nothing, a
// signal behind them tells of all pages, and the operation holds the channel.
//
// Offsets count over all ranges of an operation. A row that does not lie in a single one is left
// out and counted.
//
// A page whose number is -1 (all bits set) at either end is padding: it is left out in silence. A
// page that does not lie in a buffer as a whole is left out and counted (ph_channel_skipped),
// whatever its number; the channel stays good. So no number reaches beyond the buffers. If pages of
// the destination overlap, the data there is undefined.
//
// Rows at multiples of 16 bytes (offsets, strides, row_bytes, buffers) are the fastest, then those
// at multiples of 8 and 4; any other work.
//
// How it goes:
// - By ipc between devices, it is one launch of at most `blocks` blocks of 512 threads. A launch
//   takes lists of up to 3584 bytes of offsets and numbers that the call has read. Larger ones go
//   through 4 MiB of pinned memory of the context.
// - By ipc between host memories, it is one step of the queue, which the processor copies.
// - Over the net, with PH_ZERO_SM and without kernels, the call makes one put or get of each row.
//   Rows that follow one another at both ends are one. Then the numbers and the count must lie in
//   memory that the host reads (-ENOTSUP else).
//
// In a host context the call takes memory for a list that cannot be copied at once, and gives it
// back when it is. In the last case it takes memory until it returns.
//
// Errors, beside those of ph_put and ph_get:
// - -EINVAL: struct_size, parts, rows, number_bytes, numbers or a count that are not aligned to
//   their size, or a page of the list that cannot lie in a buffer whatever its number (offsets,
//   strides, row_bytes).
// - -E2BIG: 2147483648 rows of all pages and parts, or rows of 4 GiB; more than 4 MiB that the
//   call has to keep.
// - -ENOTSUP: the numbers lie in memory that the host does not read, where it has to. While a
//   stream captures: the list has more than 3584 bytes that the call has to read.
// - -EAGAIN: the 4 MiB are full of lists that streams have not come to.
// - -ENOMEM.
// Since 0.1.
PH_API int ph_put_pages(struct ph_channel *channel, const struct ph_pages *pages, void *stream);
PH_API int ph_get_pages(struct ph_channel *channel, const struct ph_pages *pages, void *stream);

// ph_channel_skipped returns how many parts of pages were left out so far because they do not lie
// in a buffer, of lists whose operations are done. 0 for NULL. Never blocks; any thread. Since 0.1.
PH_API uint64_t ph_channel_skipped(const struct ph_channel *channel);

#ifdef __cplusplus
}
#endif
#endif
