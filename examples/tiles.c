/* SPDX-License-Identifier: BSD-3-Clause */
/* Copies that are not one piece: a tile of a matrix, rows that are gathered, rows that are
   scattered.

       cc tiles.c $(pkg-config --cflags --libs peerhop) -o tiles
       peerhop-run -n 2 ./tiles

   Both ranks have a matrix. Rank 0 puts and gets parts of it; each is one list of pages, and on a
   GPU one launch. */
#include "example.h"

enum { ROWS = 64, COLUMNS = 96, PICKED = 8 };

static const uint64_t ROW = COLUMNS * sizeof(int);
static const uint32_t picked[PICKED] = {60, 3, 3, 17, 42, 0, 63, 8}; /* a row may come twice */

static int value(int rank, int row, int column)
{
    return rank * 1000000 + row * 1000 + column;
}

/* A 2D copy: one page with many rows, whose distance is the matrix's. */
static struct ph_pages tile(const uint64_t *from, const uint64_t *to, uint32_t rows, int columns)
{
    return (struct ph_pages){.struct_size = sizeof(struct ph_pages),
                             .pages = 1,
                             .parts = 1,
                             .rows = rows,
                             .row_bytes = (uint64_t)columns * sizeof(int),
                             .local = {.at = from, .row_stride = ROW},
                             .peer = {.at = to, .row_stride = ROW}};
}

/* Each row is a page. Rows that are gathered have numbers where they come from, rows that are
   scattered where they go to; at the other end they follow one another. */
static struct ph_pages rows_of(const uint32_t *local, const uint32_t *peer)
{
    return (struct ph_pages){
        .struct_size = sizeof(struct ph_pages),
        .pages = PICKED,
        .parts = 1,
        .rows = 1,
        .row_bytes = ROW,
        .local = {.page_stride = ROW, .numbers = local, .number_bytes = local ? 4 : 0},
        .peer = {.page_stride = ROW, .numbers = peer, .number_bytes = peer ? 4 : 0}};
}

static void fill(char *matrix, int rank, void *stream)
{
    int *values = allocate((size_t)ROWS * COLUMNS, sizeof *values);

    for (int i = 0; i < ROWS * COLUMNS; i++)
        values[i] = value(rank, i / COLUMNS, i % COLUMNS);
    copy(matrix, values, ROWS * ROW, stream);
    free(values);
}

static int *read_all(const char *matrix, void *stream)
{
    int *values = allocate((size_t)ROWS * COLUMNS, sizeof *values);

    copy(values, matrix, ROWS * ROW, stream);
    return values;
}

int main(void)
{
    const uint64_t from = 10 * ROW + 5 * sizeof(int), to = 40 * ROW + 50 * sizeof(int);
    struct ph_channel *channel;
    struct ph_operation op = {.op_id = 1, .role = PH_ROLE_BOTH, .size = ROWS * ROW};
    void *stream;
    int *values;

    begin(2);
    stream = stream_new();
    const int rank = ph_context_rank(context);
    op.buffer = memory_new(op.size);
    op.peer = !rank;
    fill(op.buffer, rank, stream);
    check(ph_exchange(context, &op, 1, &channel));
    if (rank == 0) {
        const struct ph_pages list = tile(&from, &to, 20, 30), gathered = rows_of(NULL, picked);

        check(ph_put_pages(channel, &list, stream)); /* a tile, to another place */
        check(ph_get_pages(channel, &gathered, stream));
        check(ph_signal(channel, stream)); /* behind all that comes before it */
    } else {
        check(ph_wait(channel, 0, stream));
    }
    values = read_all(op.buffer, stream);
    check(ph_channel_status(channel));
    for (int i = 0; rank == 1 && i < 20 * 30; i++)
        expect(values[(40 + i / 30) * COLUMNS + 50 + i % 30] == value(0, 10 + i / 30, 5 + i % 30),
               "tile");
    for (int i = 0; rank == 0 && i < PICKED * COLUMNS; i++) {
        const int row = (int)picked[i / COLUMNS], column = i % COLUMNS;
        const bool in_tile = row >= 40 && row < 60 && column >= 50 && column < 80;

        expect(values[i] == (in_tile ? value(0, row - 30, column - 45) : value(1, row, column)),
               "row that was gathered");
    }
    if (rank == 0)
        printf("a tile and %d rows, on %s\n", PICKED, ph_context_device(context));
    free(values);
    end();
    return 0;
}
