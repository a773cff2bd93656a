// SPDX-License-Identifier: BSD-3-Clause
#include "options.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "hide.h"

enum {
    OPTION_PROTOCOL = 256,
    OPTION_CHANNELS,
    OPTION_OPS,
    OPTION_SEGMENTS,
    OPTION_VERIFY,
    OPTION_COMPARE,
    OPTION_GROUP,
    OPTION_WAIT,
    OPTION_DEADLINE,
    OPTION_STORE,
    OPTION_TUNE,
    OPTION_SAVE,
    OPTION_LATE,
    OPTION_GRAPHS,
    OPTION_FRESH,
    OPTION_PROGRESS,
    OPTION_VERSION,
    OPTION_PAGES,
    OPTION_PAGE_SIZE,
    OPTION_PARTS,
};

static const struct option long_options[] = {
    {"list", no_argument, NULL, 'l'},
    {"case", required_argument, NULL, 'c'},
    {"bytes", required_argument, NULL, 'b'},
    {"iterations", required_argument, NULL, 'n'},
    {"warmup", required_argument, NULL, 'w'},
    {"ranks", required_argument, NULL, 'r'},
    {"kind", required_argument, NULL, 'k'},
    {"path", required_argument, NULL, 'p'},
    {"method", required_argument, NULL, 'm'},
    {"issue", required_argument, NULL, 'i'},
    {"output", required_argument, NULL, 'o'},
    {"help", no_argument, NULL, 'h'},
    {"protocol", required_argument, NULL, OPTION_PROTOCOL},
    {"channels", required_argument, NULL, OPTION_CHANNELS},
    {"ops", required_argument, NULL, OPTION_OPS},
    {"segments", required_argument, NULL, OPTION_SEGMENTS},
    {"verify", no_argument, NULL, OPTION_VERIFY},
    {"compare", optional_argument, NULL, OPTION_COMPARE},
    {"group", no_argument, NULL, OPTION_GROUP},
    {"wait", required_argument, NULL, OPTION_WAIT},
    {"deadline", required_argument, NULL, OPTION_DEADLINE},
    {"store", required_argument, NULL, OPTION_STORE},
    {"tune", no_argument, NULL, OPTION_TUNE},
    {"save", required_argument, NULL, OPTION_SAVE},
    {"late", required_argument, NULL, OPTION_LATE},
    {"graphs", required_argument, NULL, OPTION_GRAPHS},
    {"fresh", no_argument, NULL, OPTION_FRESH},
    {"progress", no_argument, NULL, OPTION_PROGRESS},
    {"version", no_argument, NULL, OPTION_VERSION},
    {"pages", required_argument, NULL, OPTION_PAGES},
    {"page-size", required_argument, NULL, OPTION_PAGE_SIZE},
    {"parts", required_argument, NULL, OPTION_PARTS},
    {NULL, 0, NULL, 0},
};

void bench_options_help(FILE *out)
{
    fputs(
        "usage: peerhop-perf [options]\n"
        "Measures Peerhop between ranks that it starts as processes, with a store of its own.\n"
        "Without -c: put and get bandwidth, send latency and bandwidth, verified; on GPUs also "
        "overlap.\n\n"
        "  -l            list the cases\n"
        "  -c CASE       run this case (repeatable)\n"
        "  -b SIZES      bytes: 8, 64K, 8:1G (doubling), 8:1G:x4 (repeatable)\n"
        "  -n COUNT      iterations of each measurement (else by time)\n"
        "  -w COUNT      iterations of warm-up at least (50 ms at least, too)\n"
        "  -r COUNT      ranks (2); pairs 0-1, 2-3, ...; exchange and import: all with all\n"
        "  -k KIND       memory: auto, host, cuda\n"
        "  -p PATH       auto, ipc, net: fail where another path would be taken; net asks for it\n"
        "  -m METHOD     auto, ce, copy_kernel, sm, ll: how GPU copies are made\n"
        "  -i ISSUE      stream, graph (CUDA graphs), host (synchronise each iteration),\n"
        "                request (the host waits for a ph_request of each iteration),\n"
        "                device (by a kernel that stays; send-latency: ll_put_signal, to 8K)\n"
        "  -o FORMAT     table, json (one object a line)\n"
        "  --protocol P  put, get: protocol of the send cases\n"
        "  --channels N  channels used at once (else by the case)\n"
        "  --ops N       operations of an exchange (1024)\n"
        "  --segments M  allocations that hold them (1)\n"
        "  --pages N     of a list (4096); --page-size BYTES (4096); --parts L: each page has so "
        "many "
        "(1)\n"
        "  --group       send cases: issue by ph_group; latency shifted by one receive\n"
        "  --verify      fresh data for each block, every byte checked\n"
        "  --compare [W] measure the raw limit in the same run, and the ratio (W is raw, or left\n"
        "                out), or the same by NCCL (nccl: send-, unbound-latency, -bandwidth, "
        "overlap)\n"
        "  --late US     send- and put-latency: a message that comes US us after its receive was\n"
        "                posted, and three whose receives come US us after the sends: us until\n"
        "                all is in place; the limit is the same on time, after as long a rest\n"
        "  --graphs N    N captured graphs live meanwhile: beside eager calls, or (-i graph)\n"
        "                with the measured one\n"
        "  --fresh       send- and put-latency: each message from and into another buffer,\n"
        "                with the exchange that it needs\n"
        "  --wait MODE   auto, kernel, memory_operation: how GPU streams wait\n"
        "  --deadline S  seconds after which the run is ended (600)\n"
        "  --tune        measure ll, sm and ce in turn between 2 ranks, over sizes\n"
        "                (-b, 8:256M), and print what PEERHOP_TABLE takes\n"
        "  --save FILE   write that to FILE, too\n"
        "  --store URI   store to use (else PEERHOP_STORE, else a private directory)\n"
        "  --progress    say on standard error, once a second, how far a measurement is; on a "
        "terminal\n"
        "                that is said anyway\n"
        "  -h            this help\n"
        "  --version     the version, and what this build has\n\n"
        "Where PEERHOP_RANK is set, or peerhop-run, srun, mpirun or torchrun has started it as "
        "one\n"
        "of several, it is one rank and starts nothing; the store is then to be named.\n",
        out);
}

void bench_options_list(FILE *out)
{
    for (size_t i = 0; i < bench_case_count; i++)
        fprintf(out, "%-19s %s\n", bench_case_table[i]->name, bench_case_table[i]->what);
}

static int parse_size(const char **text, size_t *size)
{
    if (!isdigit((unsigned char)**text))
        return -EINVAL;
    errno = 0;
    char *end;
    unsigned long long value = strtoull(*text, &end, 10);
    if (errno)
        return -EINVAL;

    static const char suffixes[] = "kmg";
    const char *suffix = *end ? strchr(suffixes, tolower((unsigned char)*end)) : NULL;
    int shift = suffix ? 10 * (int)(suffix - suffixes + 1) : 0;
    if (value > (SIZE_MAX >> 1) >> shift)
        return -EINVAL;
    *text = end + (suffix != NULL);
    *size = (size_t)value << shift;
    return 0;
}

static int parse_factor(const char *text, size_t *factor)
{
    if (strncmp(text, ":x", 2) != 0)
        return -EINVAL;
    text += 2;
    int rc = parse_size(&text, factor);
    return rc || *text || *factor < 2 ? -EINVAL : 0;
}

int bench_sizes_parse(struct bench_sizes *sizes, const char *text)
{
    size_t low, high, factor = 2;
    if (parse_size(&text, &low))
        return -EINVAL;
    high = low;
    if (*text) {
        if (*text++ != ':' || parse_size(&text, &high) || low == 0 || high < low)
            return -EINVAL;
        if (*text && parse_factor(text, &factor))
            return -EINVAL;
    }

    size_t n = sizes->n;
    for (size_t size = low;; size *= factor) {
        if (n == BENCH_SIZES_MAX)
            return -E2BIG;
        sizes->values[n++] = size;
        if (size > high / factor || size == 0)
            break;
    }
    sizes->n = n;
    return 0;
}

__attribute__((format(printf, 3, 4))) static int refuse(char *error, size_t size,
                                                        const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error, size, format, arguments);
    va_end(arguments);
    return -EINVAL;
}

struct parser {
    struct bench_options *options;
    char *error;
    size_t error_size;
};

static int parse_number(struct parser *parser, const char *name, int64_t low, int64_t high,
                        int64_t *value)
{
    char *end;
    errno = 0;
    long long number = strtoll(optarg, &end, 10);
    if (errno || *end || end == optarg || number < low || number > high)
        return refuse(parser->error, parser->error_size, "%s: '%s' is no number from %lld to %lld",
                      name, optarg, (long long)low, (long long)high);
    *value = number;
    return 0;
}

// words are separated by '|'; *value becomes the argument, which is one of them.
static int parse_word(struct parser *parser, const char *name, const char *words,
                      const char **value)
{
    size_t length = strlen(optarg);
    for (const char *word = words; word; word = strchr(word, '|') ? strchr(word, '|') + 1 : NULL) {
        if (length == strcspn(word, "|") && strncmp(word, optarg, length) == 0) {
            *value = optarg;
            return 0;
        }
    }
    return refuse(parser->error, parser->error_size, "%s: '%s' is none of %s", name, optarg, words);
}

static int parse_case(struct parser *parser)
{
    struct bench_options *options = parser->options;
    const struct bench_case *test = bench_case_find(optarg);
    if (!test)
        return refuse(parser->error, parser->error_size, "-c: no case is named '%s' (see -l)",
                      optarg);
    if (options->case_count == BENCH_CASES_MAX)
        return refuse(parser->error, parser->error_size, "-c: more than %d cases", BENCH_CASES_MAX);
    options->cases[options->case_count++] = test;
    return 0;
}

static int parse_issue(struct parser *parser)
{
    const char *word = "";
    int rc = parse_word(parser, "-i", "stream|graph|host|request|device", &word);
    if (rc == 0)
        parser->options->issue = *word == 's'   ? BENCH_ISSUE_STREAM
                                 : *word == 'g' ? BENCH_ISSUE_GRAPH
                                 : *word == 'd' ? BENCH_ISSUE_DEVICE
                                 : *word == 'r' ? BENCH_ISSUE_REQUEST
                                                : BENCH_ISSUE_HOST;
    return rc;
}

// parse_compare: the word may also stand behind, as no other word of a command line does.
static int parse_compare(struct parser *parser, int argc, char **argv)
{
    const char *word = "raw";
    if (!optarg && optind < argc && *argv[optind] != '-')
        optarg = argv[optind++];
    int rc = optarg ? parse_word(parser, "--compare", "raw|nccl", &word) : 0;
    if (rc == 0)
        parser->options->compare = *word == 'n' ? BENCH_COMPARE_NCCL : BENCH_COMPARE_RAW;
    return rc;
}

static int parse_output(struct parser *parser)
{
    const char *word = "";
    int rc = parse_word(parser, "-o", "table|json", &word);
    if (rc == 0)
        parser->options->json = *word == 'j';
    return rc;
}

static int parse_short(struct parser *parser, int option)
{
    struct bench_options *options = parser->options;
    switch (option) {
    case 'l':
        options->list = true;
        return 0;
    case 'h':
        options->help = true;
        return 0;
    case 'c':
        return parse_case(parser);
    case 'b':
        if (bench_sizes_parse(&options->sizes, optarg))
            return refuse(parser->error, parser->error_size,
                          "-b: '%s' is no size or range (8, 64K, 8:1G:x4; %d sizes at most)",
                          optarg, BENCH_SIZES_MAX);
        return 0;
    case 'n':
        return parse_number(parser, "-n", 1, 1000000000, &options->iterations);
    case 'w':
        return parse_number(parser, "-w", 0, 1000000000, &options->warmup);
    case 'r':
        return parse_number(parser, "-r", 2, BENCH_RANKS_MAX, &options->ranks);
    case 'k':
        return parse_word(parser, "-k", "auto|host|cuda", &options->kind);
    case 'p':
        return parse_word(parser, "-p", "auto|ipc|net", &options->path);
    case 'm':
        return parse_word(parser, "-m", "auto|ce|copy_kernel|sm|ll", &options->method);
    case 'i':
        return parse_issue(parser);
    default:
        return parse_output(parser);
    }
}

static int parse_long(struct parser *parser, int option)
{
    struct bench_options *options = parser->options;
    switch (option) {
    case OPTION_PROTOCOL:
        return parse_word(parser, "--protocol", "put|get", &options->protocol);
    case OPTION_CHANNELS:
        return parse_number(parser, "--channels", 1, 1024, &options->channels);
    case OPTION_OPS:
        return parse_number(parser, "--ops", 1, 65536, &options->ops);
    case OPTION_SEGMENTS:
        return parse_number(parser, "--segments", 1, 4096, &options->segments);
    case OPTION_VERIFY:
        options->verify = true;
        return 0;
    case OPTION_GROUP:
        options->group = true;
        return 0;
    case OPTION_WAIT:
        return parse_word(parser, "--wait", "auto|kernel|memory_operation", &options->wait);
    case OPTION_DEADLINE:
        return parse_number(parser, "--deadline", 1, 86400, &options->deadline_s);
    case OPTION_TUNE:
        options->tune = true;
        return 0;
    case OPTION_SAVE:
        options->save = optarg;
        return 0;
    case OPTION_LATE:
        return parse_number(parser, "--late", 0, 1000000, &options->late_us);
    case OPTION_GRAPHS:
        return parse_number(parser, "--graphs", 1, 65536, &options->graphs);
    case OPTION_FRESH:
        options->fresh = true;
        return 0;
    case OPTION_PROGRESS:
        options->progress = true;
        return 0;
    case OPTION_VERSION:
        options->version = true;
        return 0;
    case OPTION_PAGES:
        return parse_number(parser, "--pages", 1, 1 << 28, &options->pages);
    case OPTION_PAGE_SIZE:
        return parse_number(parser, "--page-size", 1, 1 << 30, &options->page_size);
    case OPTION_PARTS:
        return parse_number(parser, "--parts", 1, BENCH_PARTS_MAX, &options->parts);
    default:
        // A launcher has hidden the password from the ranks' arguments: they have the environment.
        options->store = is_hidden(optarg) ? NULL : hide_password(optarg);
        return 0;
    }
}

// Whether the host waits for each iteration.
static bool host_waits(const struct bench_options *options)
{
    return options->issue == BENCH_ISSUE_HOST || options->issue == BENCH_ISSUE_REQUEST;
}

static bool is_default(const struct bench_options *options, const struct bench_case *test)
{
    const bool net = strcmp(options->path, "net") == 0;
    // Of devices over the net nobody gets: the other end has to send.
    if (test == &bench_get_bandwidth && net && strcmp(options->kind, "cuda") == 0)
        return false;
    if (test->rows && (net || options->group || options->graphs ||
                       strcmp(options->kind, "host") == 0 || host_waits(options)))
        return false;
    if ((options->late_us >= 0 || options->fresh) && !test->give)
        return false;
    return (options->issue != BENCH_ISSUE_DEVICE || test->kernel) &&
           (options->compare != BENCH_COMPARE_NCCL || test->nccl);
}

// What a run without -c does: the table that a newcomer sees.
static void default_cases(struct bench_options *options)
{
    static const struct bench_case *const cases[] = {&bench_put_bandwidth, &bench_get_bandwidth,
                                                     &bench_send_latency, &bench_send_bandwidth,
                                                     &bench_overlap_case};
    if (options->case_count > 0)
        return;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (is_default(options, cases[i]))
            options->cases[options->case_count++] = cases[i];
    options->verify = options->by_default = true;
}

// What a kernel does by itself: one channel each way, no groups.
static int check_device(struct parser *parser)
{
    const struct bench_options *options = parser->options;
    if (options->issue != BENCH_ISSUE_DEVICE)
        return 0;
    if (options->group || options->channels > 1)
        return refuse(parser->error, parser->error_size,
                      "-i device: not with --group or several --channels");
    for (size_t i = 0; i < options->case_count; i++)
        if (!options->cases[i]->kernel)
            return refuse(parser->error, parser->error_size, "-i device: %s is not done by kernels",
                          options->cases[i]->name);
    return 0;
}

// What has no counterpart, and what runs on streams alone.
static int check_cases(struct parser *parser)
{
    const struct bench_options *options = parser->options;
    const bool nccl = options->compare == BENCH_COMPARE_NCCL;
    if (nccl && (options->issue == BENCH_ISSUE_DEVICE || strcmp(options->kind, "host") == 0))
        return refuse(parser->error, parser->error_size,
                      "--compare nccl: NCCL has neither -i device nor -k host");
    for (size_t i = 0; i < options->case_count; i++) {
        const struct bench_case *test = options->cases[i];
        if (nccl && !test->nccl)
            return refuse(parser->error, parser->error_size,
                          "--compare nccl: NCCL has no counterpart of %s", test->name);
        if (nccl && options->issue == BENCH_ISSUE_REQUEST)
            return refuse(parser->error, parser->error_size,
                          "--compare nccl: not with -i request, which NCCL has not");
        if (test->rows && (host_waits(options) || options->group || options->graphs))
            return refuse(parser->error, parser->error_size,
                          "%s: not with -i host, -i request, --group or --graphs", test->name);
    }
    return 0;
}

static int check_beside_cases(struct parser *parser)
{
    const struct bench_options *options = parser->options;
    const bool messages = options->late_us >= 0 || options->fresh;
    for (size_t i = 0; i < options->case_count; i++) {
        const struct bench_case *test = options->cases[i];
        if (messages && !test->give)
            return refuse(parser->error, parser->error_size,
                          "%s: send-latency and put-latency only, not %s",
                          options->fresh ? "--fresh" : "--late", test->name);
        if (options->graphs && test->exchange)
            return refuse(parser->error, parser->error_size, "--graphs: %s goes into no graph",
                          test->name);
    }
    return 0;
}

// Of --late, --graphs and --fresh each says what is measured, and how.
static int check_beside(struct parser *parser)
{
    const struct bench_options *options = parser->options;
    const bool late = options->late_us >= 0, others = options->group || options->compare;
    const bool raw = options->compare == BENCH_COMPARE_RAW;
    const bool host = host_waits(options);
    const bool graph = options->issue == BENCH_ISSUE_GRAPH;
    const bool device = options->issue == BENCH_ISSUE_DEVICE;
    if (late && (options->fresh || options->group || raw || host || device))
        return refuse(
            parser->error, parser->error_size,
            "--late: not with --fresh, --group, --compare raw, -i host, -i request or -i device");
    if (options->fresh && (options->graphs || others || graph || device))
        return refuse(parser->error, parser->error_size,
                      "--fresh: not with --graphs, --group, --compare, -i graph or -i device");
    if (options->graphs && device)
        return refuse(parser->error, parser->error_size, "--graphs: not with -i device");
    return check_beside_cases(parser);
}

// A list is as large as its pages. Where -b says how large, it is whole pages.
static int check_pages(struct parser *parser)
{
    struct bench_options *options = parser->options;
    const int64_t page = options->page_size * options->parts;
    for (size_t i = 0; i < options->case_count; i++)
        for (size_t j = 0; options->cases[i]->pages && j < options->sizes.n; j++) {
            const size_t bytes = options->sizes.values[j];
            if (bytes == 0 || bytes % (size_t)page)
                return refuse(parser->error, parser->error_size,
                              "%s: -b is a multiple of %lld bytes (--page-size, --parts), not %zu",
                              options->cases[i]->name, (long long)page, bytes);
        }
    if (options->pages == 0)
        return 0;
    if (options->sizes.n > 0)
        return refuse(parser->error, parser->error_size, "--pages: not with -b");
    if (options->pages > ((int64_t)1 << 40) / page)
        return refuse(parser->error, parser->error_size, "--pages: more than 1 TiB");
    options->sizes.values[options->sizes.n++] = (size_t)(options->pages * page);
    return 0;
}

// What is measured is given, and no option may take another method for all of it.
static int check_tune(struct parser *parser)
{
    const struct bench_options *options = parser->options;
    if (options->save && !options->tune)
        return refuse(parser->error, parser->error_size, "--save: only with --tune");
    if (!options->tune)
        return 0;
    if (options->case_count || options->ranks != 2 || options->method || options->compare ||
        options->json || options->channels || options->issue != BENCH_ISSUE_STREAM ||
        options->late_us >= 0 || options->graphs || options->fresh ||
        strcmp(options->path, "net") == 0)
        return refuse(parser->error, parser->error_size,
                      "--tune: not with -c, -r, -m, -i, -o json, -p net, --channels, --compare, "
                      "--late, --graphs or --fresh");
    return 0;
}

int bench_options_parse(struct bench_options *options, int argc, char **argv, char *error,
                        size_t error_size)
{
    *options = (struct bench_options){
        .ranks = 2,
        .ops = 1024,
        .segments = 1,
        .page_size = 4096,
        .parts = 1,
        .deadline_s = 600,
        .late_us = -1,
        .kind = "auto",
        .path = "auto",
        .protocol = "put",
    };
    struct parser parser = {options, error, error_size};

    optind = 0; // parsed anew, also where a program has parsed another line before
    opterr = 0;
    int option;
    while ((option = getopt_long(argc, argv, ":lc:b:n:w:r:k:p:m:i:o:h", long_options, NULL)) !=
           -1) {
        if (option == '?')
            return refuse(error, error_size, "unknown option '%s' (see -h)",
                          without_password(argv[optind - 1]));
        if (option == ':')
            return refuse(error, error_size, "'%s' needs a value (see -h)", argv[optind - 1]);
        int rc = option == OPTION_COMPARE ? parse_compare(&parser, argc, argv)
                 : option < 256           ? parse_short(&parser, option)
                                          : parse_long(&parser, option);
        if (rc)
            return rc;
    }
    if (optind < argc)
        return refuse(error, error_size, "'%s' is no option (see -h)",
                      without_password(argv[optind]));
    if (options->segments > options->ops)
        return refuse(error, error_size, "--segments: more allocations than operations (--ops)");
    int rc = check_tune(&parser);
    if (rc || options->tune)
        return rc;
    default_cases(options);
    rc = check_pages(&parser);
    if (rc == 0)
        rc = check_device(&parser);
    if (rc == 0)
        rc = check_beside(&parser);
    return rc ? rc : check_cases(&parser);
}
