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

// The address of row `row` of a page, or 0 where the row is left out. *out: it counts as left out.
static __device__ uint64_t row_address(const phi_pages_args &args, const phi_pages_end &end,
                                       uint32_t part, uint32_t page, uint32_t row, bool *out)
{
    uint64_t number;
    const page_state state = number_of(args, end, page, &number);
    if (state != PAGE_IN) {
        *out = *out || state == PAGE_OUT;
        return 0;
    }
    // Neither sum overflows: the host has checked at and the rows of a page, and number <= most.
    const uint64_t begin =
        static_cast<const uint64_t *>(list_of(args, end.at))[part] + number * end.page_stride;
    const uint64_t last = (args.rows - 1) * end.row_stride + args.row_bytes;
    if (begin > end.size || last > end.size - begin) {
        *out = true;
        return 0;
    }
    const uint64_t offset = begin + row * end.row_stride;
    if (end.ranges == 0)
        return end.base + offset;
    const uint64_t address = in_ranges(end, offset, args.row_bytes);
    *out = *out || address == 0;
    return address;
}

// How a launch cuts its rows: a warp takes a tile at a time, which is a piece of one row, or as
// many rows as a tile holds, 32 at most.
struct phi_tiling {
    uint32_t units;  // of a row
    uint32_t pieces; // of a row
    uint32_t rows;   // of a tile
};

static __device__ phi_tiling tiling_of(const phi_pages_args &args)
{
    const uint32_t units = static_cast<uint32_t>(args.row_bytes / args.unit);
    const uint32_t rows = PHI_PAGES_TILE / units;
    return {units, (units + PHI_PAGES_TILE - 1) / PHI_PAGES_TILE,
            rows > 32  ? 32
            : rows > 1 ? rows
                       : 1};
}

// The rows of one tile, as one lane of the warp knows its own.
struct phi_tile_row {
    uint64_t source, destination; // 0: left out
};

// Each lane finds the row of its number in the tile. The rows of one page follow one another, then
// those of the next page of the part. skipped counts parts of pages, each once: by its first row,
// or, where ranges cut it, by each row that is left out.
static __device__ phi_tile_row find_row(const phi_pages_args &args, uint32_t number, uint32_t pages,
                                        bool first_piece, uint32_t *skipped)
{
    const uint32_t row = number % args.rows, entry = number / args.rows;
    const uint32_t page = entry % pages, part = entry / pages;
    bool out = false;
    uint64_t number_unused;
    phi_tile_row found = {row_address(args, args.source, part, page, row, &out), 0};
    // Padding at one end is no fault, whatever the other end says.
    if (number_of(args, args.destination, page, &number_unused) == PAGE_PADDING ||
        number_of(args, args.source, page, &number_unused) == PAGE_PADDING)
        return {0, 0};
    found.destination = row_address(args, args.destination, part, page, row, &out);
    if (out && first_piece && (row == 0 || args.source.ranges || args.destination.ranges))
        ++*skipped;
    return found.source && found.destination ? found : phi_tile_row{0, 0};
}

static __device__ uint64_t of_lane(uint64_t value, uint32_t lane)
{
    return __shfl_sync(~0u, static_cast<unsigned long long>(value), lane);
}

// Up to PHI_PAGES_TILE units by one warp, 8 loads in flight of each lane.
template <typename T>
static __device__ void copy_tile(const phi_tile_row &mine, uint32_t units, uint32_t n,
                                 uint64_t from)
{
    const uint32_t lane = threadIdx.x % 32;
    enum { EACH = PHI_PAGES_TILE / 32 };
    T unit[EACH];
    uint64_t to[EACH];
#pragma unroll
    for (uint32_t k = 0; k < EACH; k++) {
        const uint32_t i = lane + 32 * k, row = units >= PHI_PAGES_TILE ? 0 : i / units;
        const uint32_t owner = row < 32 ? row : 0;
        const uint64_t source = of_lane(mine.source, owner);
        const uint64_t destination = of_lane(mine.destination, owner);
        const uint64_t offset = from + static_cast<uint64_t>(i - row * units) * sizeof(T);
        to[k] = i < n && source != 0 ? destination + offset : 0;
        if (to[k] != 0)
            unit[k] = *reinterpret_cast<const T *>(source + offset);
    }
#pragma unroll
    for (uint32_t k = 0; k < EACH; k++)
        if (to[k] != 0)
            *reinterpret_cast<T *>(to[k]) = unit[k];
}

template <typename T> static __device__ void copy_pages(const phi_pages_args &args)
{
    const phi_tiling tiling = tiling_of(args);
    const uint32_t pages = pages_in(args), lane = threadIdx.x % 32;
    const uint32_t warps = gridDim.x * (blockDim.x / 32);
    const uint32_t rows = args.parts * pages * args.rows;
    const uint32_t tiles =
        tiling.pieces > 1 ? rows * tiling.pieces : (rows + tiling.rows - 1) / tiling.rows;
    uint32_t skipped = 0;
    for (uint32_t tile = (blockIdx.x * blockDim.x + threadIdx.x) / 32; tile < tiles;
         tile += warps) {
        const uint32_t first = tiling.pieces > 1 ? tile / tiling.pieces : tile * tiling.rows;
        const uint32_t piece = tiling.pieces > 1 ? tile % tiling.pieces : 0;
        const uint32_t here = rows - first < tiling.rows ? rows - first : tiling.rows;
        phi_tile_row mine = {0, 0};
        if (lane < here)
            mine = find_row(args, first + lane, pages, piece == 0, &skipped);
        const uint32_t begun = piece * PHI_PAGES_TILE;
        const uint32_t left = tiling.units - begun;
        const uint32_t n = tiling.pieces > 1 ? (left < PHI_PAGES_TILE ? left : PHI_PAGES_TILE)
                                             : here * tiling.units;
        copy_tile<T>(mine, tiling.pieces > 1 ? PHI_PAGES_TILE : tiling.units, n,
                     static_cast<uint64_t>(begun) * sizeof(T));
    }
    // The number of the launch, which a fence precedes, tells of the count.
    if (skipped != 0 && args.skipped != 0)
        atomicAdd(reinterpret_cast<unsigned long long *>(args.skipped),
                  static_cast<unsigned long long>(skipped));
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

extern "C" __global__ void __launch_bounds__(PHI_PAGES_THREADS)
    phi_pages(const __grid_constant__ phi_pages_args args)
{
    auto next = follow(args);
    let_next_in();
    if (may_copy_pages(args)) {
        if (args.unit == 16)
            copy_pages<uint4>(args);
        else if (args.unit == 8)
            copy_pages<uint2>(args);
        else if (args.unit == 4)
            copy_pages<uint32_t>(args);
        else
            copy_pages<uint8_t>(args);
    }
    release_copies();
    end_copies(next, args);
}
