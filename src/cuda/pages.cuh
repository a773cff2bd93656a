// SPDX-License-Identifier: BSD-3-Clause
// Lists of pages (phi_pages_args). Included by kernels.cu.

// A list of the arguments: in the payload, or in memory.
static __device__ const void *list_of(const phi_pages_args &args, uint64_t list)
{
    if (list & PHI_PAGES_INLINE)
        return args.payload + (list & ~PHI_PAGES_INLINE);
    return reinterpret_cast<const void *>(list);
}

static __device__ uint32_t pages_in(const phi_pages_args &args)
{
    if (args.count == 0)
        return args.pages;
    const uint32_t count = *static_cast<const uint32_t *>(list_of(args, args.count));
    return count < args.pages ? count : args.pages;
}

enum page_state { PAGE_IN, PAGE_PADDING, PAGE_OUT };

static __device__ page_state number_of(const phi_pages_args &args, const phi_pages_end &end,
                                       uint32_t page, uint64_t *number)
{
    *number = page;
    if (end.numbers == 0)
        return page <= end.most ? PAGE_IN : PAGE_OUT;
    const void *numbers = list_of(args, end.numbers);
    bool padding;
    if (end.number_bytes == 4) {
        const uint32_t n = static_cast<const uint32_t *>(numbers)[page];
        padding = n == UINT32_MAX;
        *number = n;
    } else {
        *number = static_cast<const uint64_t *>(numbers)[page];
        padding = *number == UINT64_MAX;
    }
    return padding ? PAGE_PADDING : *number <= end.most ? PAGE_IN : PAGE_OUT;
}

// The address of a row in the ranges of an end, or 0 where it lies in no single one.
static __device__ uint64_t in_ranges(const phi_pages_end &end, uint64_t offset, uint64_t bytes)
{
    const phi_range_entry *ranges = reinterpret_cast<const phi_range_entry *>(end.ranges);
    uint32_t low = 0, high = end.range_count; // the last range that begins at `offset` or before
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (ranges[middle].begin <= offset)
            low = middle;
        else
            high = middle;
    }
    const uint64_t behind = low + 1 < end.range_count ? ranges[low + 1].begin : end.size;
    return offset + bytes <= behind ? ranges[low].address + (offset - ranges[low].begin) : 0;
}

// The address of row `row` of a page, or 0 where it lies in no single range of the end.
static __device__ uint64_t row_address(const phi_pages_args &args, const phi_pages_end &end,
                                       uint32_t part, uint64_t number, uint32_t row)
{
    // Neither sum overflows: the host has checked at and the rows of a page, and number <= most.
    const uint64_t begin =
        static_cast<const uint64_t *>(list_of(args, end.at))[part] + number * end.page_stride;
    const uint64_t last = (args.rows - 1) * end.row_stride + args.row_bytes;
    if (begin > end.size || last > end.size - begin)
        return 0;
    const uint64_t offset = begin + row * end.row_stride;
    return end.ranges == 0 ? end.base + offset : in_ranges(end, offset, args.row_bytes);
}

// How a launch cuts its rows: a warp takes a tile at a time, which is a piece of one row, or as
// many rows as a tile holds, 32 at most.
struct phi_tiling {
    uint32_t units;      // of a row
    uint32_t pieces;     // of a row
    uint32_t rows;       // of a tile
    uint32_t reciprocal; // row of unit i: i * reciprocal >> 16; 0: a tile is in one row
    uint32_t pages, all_rows, tiles;
};

static __device__ phi_tiling tiling_of(const phi_pages_args &args)
{
    const uint32_t units = static_cast<uint32_t>(args.row_bytes / args.unit);
    phi_tiling tiling = {units, 1, 1, 0, pages_in(args), 0, 0};
    tiling.all_rows = args.parts * tiling.pages * args.rows;
    tiling.tiles = tiling.all_rows;
    if (units >= PHI_PAGES_TILE) {
        tiling.pieces = (units - 1) / PHI_PAGES_TILE + 1;
        tiling.tiles *= tiling.pieces;
    } else {
        tiling.rows = PHI_PAGES_TILE / units < 32 ? PHI_PAGES_TILE / units : 32;
        tiling.tiles = (tiling.all_rows + tiling.rows - 1) / tiling.rows;
        // Exact for i and units below 256: the error is less than i * units / 2^16 < 1.
        tiling.reciprocal = (0x10000 + units - 1) / units;
    }
    return tiling;
}

// A tile, as one lane of the warp knows it: the row of the lane's number.
struct phi_tile {
    uint64_t source, destination; // of the row; 0: left out
    uint32_t n;                   // units of the tile
    bool whole;                   // PHI_PAGES_TILE of them, and no row is left out
};

// The rows of one page follow one another, then those of the next page of the part. skipped counts
// parts of pages, each once: by its first row, or, where ranges cut it, by each row that is left
// out. A tile that lies behind the last is empty.
static __device__ phi_tile find_rows(const phi_pages_args &args, const phi_tiling &tiling,
                                     uint32_t tile, uint32_t *skipped)
{
    phi_tile found = {0, 0, 0, false};
    if (tile >= tiling.tiles)
        return found;
    const uint32_t lane = threadIdx.x % 32;
    uint32_t first = tile * tiling.rows, here = tiling.rows, begun = 0;
    if (tiling.pieces > 1) {
        first = tile / tiling.pieces;
        begun = tile % tiling.pieces * PHI_PAGES_TILE;
        found.n = tiling.units - begun < PHI_PAGES_TILE ? tiling.units - begun : PHI_PAGES_TILE;
    } else {
        here = tiling.all_rows - first < here ? tiling.all_rows - first : here;
        found.n = here * tiling.units;
    }
    found.whole = lane >= here; // as far as this lane is asked
    if (found.whole)
        return found;
    const uint32_t row = (first + lane) % args.rows, entry = (first + lane) / args.rows;
    const uint32_t page = entry % tiling.pages, part = entry / tiling.pages;
    uint64_t from, to;
    const page_state source = number_of(args, args.source, page, &from);
    const page_state destination = number_of(args, args.destination, page, &to);
    // Padding at one end is no fault, whatever the other end says.
    if (source == PAGE_PADDING || destination == PAGE_PADDING)
        return found;
    if (source == PAGE_IN && destination == PAGE_IN) {
        found.source = row_address(args, args.source, part, from, row);
        found.destination = row_address(args, args.destination, part, to, row);
    }
    if (found.source != 0 && found.destination != 0) {
        const uint64_t offset = static_cast<uint64_t>(begun) * args.unit;
        found.source += offset;
        found.destination += offset;
        found.whole = true;
        return found;
    }
    if (begun == 0 && (row == 0 || args.source.ranges || args.destination.ranges))
        ++*skipped;
    return {0, 0, found.n, false};
}

static __device__ phi_tile find_tile(const phi_pages_args &args, const phi_tiling &tiling,
                                     uint32_t tile, uint32_t *skipped)
{
    phi_tile found = find_rows(args, tiling, tile, skipped);
    found.whole = __all_sync(~0u, found.whole) && found.n == PHI_PAGES_TILE;
    return found;
}

// The address of unit i of a tile at one end, of which each lane has its own row. By all lanes.
static __device__ uint64_t unit_address(const phi_tiling &tiling, uint64_t mine, uint32_t i,
                                        uint32_t size)
{
    const uint32_t row = i * tiling.reciprocal >> 16;
    const uint64_t begin =
        __shfl_sync(~0u, static_cast<unsigned long long>(mine), row < 32 ? row : 0);
    return begin != 0 ? begin + static_cast<uint64_t>(i - row * tiling.units) * size : 0;
}

#define HELD (PHI_PAGES_TILE / 32)

// Units of one tile that a lane holds.
template <typename T> struct phi_held {
    T unit[HELD];
};

// The addresses of those units at one end.
struct phi_addresses {
    uint64_t of[HELD];
};

static __device__ __forceinline__ phi_addresses addresses_of(const phi_tiling &tiling,
                                                             uint64_t mine, uint32_t size)
{
    phi_addresses found;
#pragma unroll
    for (uint32_t k = 0; k < HELD; k++)
        found.of[k] = unit_address(tiling, mine, threadIdx.x % 32 + 32 * k, size);
    return found;
}

// Loads with a condition each are not under way together: 16 blocks got 224 GB/s by them from a
// peer, and 371 by those of a whole tile.
template <typename T>
static __device__ __forceinline__ void load_tile(const phi_tiling &tiling, const phi_tile &tile,
                                                 phi_held<T> *held)
{
    const phi_addresses from = addresses_of(tiling, tile.source, sizeof(T));
    if (tile.whole) {
#pragma unroll
        for (uint32_t k = 0; k < HELD; k++)
            held->unit[k] = *reinterpret_cast<const T *>(from.of[k]);
    } else {
#pragma unroll
        for (uint32_t k = 0; k < HELD; k++)
            if (threadIdx.x % 32 + 32 * k < tile.n && from.of[k] != 0)
                held->unit[k] = *reinterpret_cast<const T *>(from.of[k]);
    }
}

template <typename T>
static __device__ __forceinline__ void store_tile(const phi_tiling &tiling, const phi_tile &tile,
                                                  const phi_held<T> &held)
{
    const phi_addresses to = addresses_of(tiling, tile.destination, sizeof(T));
    if (tile.whole) {
#pragma unroll
        for (uint32_t k = 0; k < HELD; k++)
            *reinterpret_cast<T *>(to.of[k]) = held.unit[k];
    } else {
#pragma unroll
        for (uint32_t k = 0; k < HELD; k++)
            if (threadIdx.x % 32 + 32 * k < tile.n && to.of[k] != 0)
                *reinterpret_cast<T *>(to.of[k]) = held.unit[k];
    }
}

// Whether this block is to copy. Without words to meet at, each block looks itself.
static __device__ bool may_copy_pages(const phi_pages_args &args)
{
    if (args.broken == 0)
        return true;
    const bool looks = args.sync == 0 || blockIdx.x == 0;
    const uint32_t found = __syncthreads_or(looks && threadIdx.x == 0 && is_skipped(args.broken))
                               ? GATE_SKIP
                               : GATE_COPY;
    return (args.sync == 0 ? found : hand_on(args.sync, found)) == GATE_COPY;
}

// While the units of a tile are on their way, the next one is found, whose numbers lie in memory:
// so loads from a peer are under way nearly all the time, and 16 blocks are enough. The first ones
// are on their way before the block knows whether it is to copy. Warps draw tiles as draw_rows
// does, and for its reason.
template <typename T> static __device__ void copy_pages(const phi_pages_args &args)
{
    const phi_tiling tiling = tiling_of(args);
    const uint32_t warps = gridDim.x * (blockDim.x / 32);
    uint32_t *drawn = args.sync != 0 && tiling.tiles > 2 * warps
                          ? &reinterpret_cast<phi_transfer_sync *>(args.sync)->drawn
                          : nullptr;
    uint32_t at = (blockIdx.x * blockDim.x + threadIdx.x) / 32, skipped = 0;
    phi_held<T> held;
    phi_tile tile = find_tile(args, tiling, at, &skipped);
    load_tile(tiling, tile, &held);
    if (!may_copy_pages(args))
        return;
    while (at < tiling.tiles) {
        if (drawn == nullptr) {
            at += warps;
        } else {
            uint32_t next = 0;
            if (threadIdx.x % 32 == 0)
                next = atomicInc(drawn, tiling.tiles - 1);
            at = __shfl_sync(~0u, next, 0) + warps;
        }
        const phi_tile next = find_tile(args, tiling, at, &skipped);
        store_tile(tiling, tile, held);
        load_tile(tiling, next, &held);
        tile = next;
    }
    // The number of the launch, which a fence precedes, tells of the count.
    if (skipped != 0 && args.skipped != 0)
        atomicAdd(reinterpret_cast<unsigned long long *>(args.skipped),
                  static_cast<unsigned long long>(skipped));
}

extern "C" __global__ void __launch_bounds__(PHI_PAGES_THREADS)
    phi_pages(const __grid_constant__ phi_pages_args args)
{
    auto next = follow(args);
    let_next_in();
    if (args.unit == 16)
        copy_pages<uint4>(args);
    else if (args.unit == 8)
        copy_pages<uint2>(args);
    else if (args.unit == 4)
        copy_pages<uint32_t>(args);
    else
        copy_pages<uint8_t>(args);
    release_copies();
    end_copies(next, args);
}
