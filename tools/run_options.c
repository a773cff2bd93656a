// SPDX-License-Identifier: BSD-3-Clause
#include "run_options.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "built.h"
#include "hide.h"

static const char usage[] =
    "usage: peerhop-run -n RANKS [options] [--] PROGRAM [ARGUMENT...]\n"
    "       peerhop-run --hosts LIST --store URI [options] [--] PROGRAM [ARGUMENT...] | sh\n"
    "Starts RANKS processes of PROGRAM on this machine, each a rank of one job, and ends all if "
    "one fails.\n"
    "With --hosts it starts nothing, and prints a script: for each node the command of ssh that "
    "does.\n\n"
    "  -n, --ranks N        number of ranks, 1 to 1024; of each host that has none in LIST (1)\n"
    "      --hosts LIST     hosts with their ranks, as a,b:2; the program is run in this folder "
    "there\n"
    "      --first-rank N   the rank of the first process here (0), where others are elsewhere\n"
    "      --all-ranks N    ranks of the job on all nodes (as many as here)\n"
    "      --store URI      store of the job (else PEERHOP_STORE, else a private directory)\n"
    "                       a password in it is seen by all until this program has hidden it: "
    "better\n"
    "                       PEERHOP_STORE_PASSWORD_FILE\n"
    "      --device DEVICE  PEERHOP_DEVICE of every rank: host, cuda or cuda:N\n"
    "      --job NAME       name of the job (else PEERHOP_JOB, else a new one)\n"
    "      --deadline S     end the run after S seconds, with status 124\n"
    "      --grace S        seconds between SIGTERM and SIGKILL where ranks must end (5); as long, "
    "then, for\n"
    "                       output that nobody reads\n"
    "      --tag            start each line of output with its rank; only then output of ranks is "
    "kept apart;\n"
    "                       it is kept until it is read, and ranks wait for that where it is "
    "much\n"
    "  -h, --help           this help\n"
    "      --version        the version, and what this build has\n\n"
    "Each rank has PEERHOP_RANK, PEERHOP_RANKS, PEERHOP_LOCAL_RANK, PEERHOP_STORE and PEERHOP_JOB, "
    "PEERHOP_DEVICE\n"
    "where --device is given, and, unless they are set, PEERHOP_EPOCH=0 and "
    "CUDA_DEVICE_MAX_CONNECTIONS=32.\n"
    "What the ranks have started and left behind is ended with the run, in a session of its own, "
    "too.\n"
    "SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to the ranks; SIGTERM: "
    "they must end. The\n"
    "exit status is that of the first rank that failed (128 + N for signal N), or 0.\n";

enum { JOB_RANKS_MAX = 1 << 20 };

enum {
    OPTION_STORE = 256,
    OPTION_DEVICE,
    OPTION_JOB,
    OPTION_DEADLINE,
    OPTION_GRACE,
    OPTION_TAG,
    OPTION_HOSTS,
    OPTION_FIRST_RANK,
    OPTION_ALL_RANKS,
    OPTION_VERSION
};

static const struct option long_options[] = {
    {"ranks", required_argument, NULL, 'n'},
    {"store", required_argument, NULL, OPTION_STORE},
    {"device", required_argument, NULL, OPTION_DEVICE},
    {"job", required_argument, NULL, OPTION_JOB},
    {"deadline", required_argument, NULL, OPTION_DEADLINE},
    {"grace", required_argument, NULL, OPTION_GRACE},
    {"tag", no_argument, NULL, OPTION_TAG},
    {"hosts", required_argument, NULL, OPTION_HOSTS},
    {"first-rank", required_argument, NULL, OPTION_FIRST_RANK},
    {"all-ranks", required_argument, NULL, OPTION_ALL_RANKS},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, OPTION_VERSION},
    {NULL, 0, NULL, 0},
};

void complain(const char *format, ...)
{
    char line[SENTENCE_SIZE];
    va_list args;

    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    fprintf(stderr, "peerhop-run: %s\n", line);
}

static void leave_with_usage(int status)
{
    fputs(usage, status ? stderr : stdout);
    exit(status);
}

static int64_t number_of(const char *name, const char *text, int64_t low, int64_t high)
{
    char *end;
    long long number;

    errno = 0;
    number = strtoll(text, &end, 10);
    if (errno || end == text || *end || number < low || number > high) {
        complain("%s: '%s' is no number from %" PRId64 " to %" PRId64, name, text, low, high);
        exit(STATUS_USAGE);
    }
    return number;
}

static void set_option(struct options *options, int option)
{
    switch (option) {
    case 'n':
        options->ranks = number_of("-n", optarg, 1, RANKS_MAX);
        break;
    case OPTION_STORE:
        options->store = hide_password(optarg);
        if (!options->store) {
            complain("no memory for the store's URI");
            exit(STATUS_FAILED);
        }
        break;
    case OPTION_DEVICE:
        options->device = optarg;
        break;
    case OPTION_JOB:
        options->job = optarg;
        break;
    case OPTION_DEADLINE:
        options->deadline_s = number_of("--deadline", optarg, 1, 1000000000);
        break;
    case OPTION_GRACE:
        options->grace_s = number_of("--grace", optarg, 0, 86400);
        break;
    case OPTION_TAG:
        options->tag = true;
        break;
    case OPTION_HOSTS:
        options->hosts = optarg;
        break;
    case OPTION_FIRST_RANK:
        options->first = number_of("--first-rank", optarg, 0, JOB_RANKS_MAX - 1);
        break;
    case OPTION_ALL_RANKS:
        options->all = number_of("--all-ranks", optarg, 1, JOB_RANKS_MAX);
        break;
    case OPTION_VERSION:
        print_version("peerhop-run");
        exit(0);
    case 'h':
        leave_with_usage(0);
        break;
    }
}

// Of ranks that are elsewhere nobody here knows where they meet, unless it is said.
static void check_place(struct options *options)
{
    const bool parted = options->first > 0 || options->all > 0;

    if (options->hosts && parted) {
        complain(
            "--hosts numbers the ranks itself: --first-rank and --all-ranks do not go with it");
        exit(STATUS_USAGE);
    }
    if (options->all == 0)
        options->all = options->ranks;
    if (!options->hosts && options->first + options->ranks > options->all) {
        complain("ranks %" PRId64 " to %" PRId64 " are not all below %" PRId64 " (--all-ranks)",
                 options->first, options->first + options->ranks - 1, options->all);
        exit(STATUS_USAGE);
    }
    if (options->all > options->ranks && !options->hosts &&
        (!options->store || !*options->store || !options->job || !*options->job)) {
        complain("a job of several peerhop-run needs --store and --job, alike for all");
        exit(STATUS_USAGE);
    }
}

void options_parse(struct options *options, int argc, char **argv)
{
    int option;

    *options = (struct options){
        .store = getenv("PEERHOP_STORE"), .job = getenv("PEERHOP_JOB"), .grace_s = 5};
    opterr = 0; // its sentence would have what may be a password
    // "+": what follows the program's name is the program's.
    while ((option = getopt_long(argc, argv, "+:n:h", long_options, NULL)) != -1) {
        if (option == '?' || option == ':') {
            complain(option == ':' ? "'%s' needs a value" : "'%s' is no option",
                     without_password(argv[optind - 1]));
            leave_with_usage(STATUS_USAGE);
        }
        set_option(options, option);
    }
    options->program = argv + optind;
    if ((options->ranks == 0 && !options->hosts) || !options->program[0])
        leave_with_usage(STATUS_USAGE);
    check_place(options);
}
