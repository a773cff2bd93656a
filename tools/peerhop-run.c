// SPDX-License-Identifier: BSD-3-Clause
// peerhop-run starts the ranks of a job on this machine, and ends them together.
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <peerhop/version.h>

#include "base/clock.h"
#include "base/random.h"
#include "hide.h"
#include "private_store.h"

enum {
    RANKS_MAX = 1024,
    LINE_SIZE = 16384,
    STATUS_FAILED = 1, // of peerhop-run itself
    STATUS_USAGE = 2,
    STATUS_DEADLINE = 124, // as timeout(1)
    STATUS_NO_EXEC = 126,  // as the shell
    STATUS_NOT_FOUND = 127,
    STATUS_SIGNAL = 128,
};

struct options {
    int64_t ranks;
    const char *store, *device, *job;
    int64_t deadline_s; // 0: none
    int64_t grace_s;
    bool tag;
    char **program;
};

// What a rank writes to stdout or stderr, where lines are tagged.
struct stream {
    int fd; // read end, or -1
    int out;
    size_t length;
    char *line; // LINE_SIZE bytes
};

struct rank {
    pid_t pid; // 0: not started, or ended
    struct stream streams[2];
};

struct run {
    struct options options;
    struct private_store private_store;
    struct rank *ranks;
    int running;
    int status; // of the first rank that failed
    bool ending;
    int64_t deadline, kill_at;
    int signals; // signalfd
    sigset_t mask_before;
    void (*pipe_before)(int); // what SIGPIPE did
};

static const char usage[] =
    "usage: peerhop-run -n RANKS [options] [--] PROGRAM [ARGUMENT...]\n"
    "Starts RANKS processes of PROGRAM on this machine, each a rank of one job, and ends all if "
    "one fails.\n\n"
    "  -n, --ranks N        number of ranks, 1 to 1024\n"
    "      --store URI      store of the job (else PEERHOP_STORE, else a private Redis)\n"
    "                       a password in it is seen by all until this program has hidden it: better\n"
    "                       PEERHOP_STORE_PASSWORD_FILE\n"
    "      --device DEVICE  PEERHOP_DEVICE of every rank: host, cuda or cuda:N\n"
    "      --job NAME       name of the job (else PEERHOP_JOB, else a new one)\n"
    "      --deadline S     end the run after S seconds, with status 124\n"
    "      --grace S        seconds between SIGTERM and SIGKILL where ranks must end (5)\n"
    "      --tag            start each line of output with its rank; only then output of ranks is "
    "kept apart\n"
    "  -h, --help           this help\n"
    "      --version        the version\n\n"
    "SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to the ranks; SIGTERM: "
    "they must end. The\n"
    "exit status is that of the first rank that failed (128 + N for signal N), or 0.\n";

static const int passed_on[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

enum {
    OPTION_STORE = 256,
    OPTION_DEVICE,
    OPTION_JOB,
    OPTION_DEADLINE,
    OPTION_GRACE,
    OPTION_TAG,
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
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, OPTION_VERSION},
    {NULL, 0, NULL, 0},
};

static void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void complain(const char *format, ...)
{
    char line[512];
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
    case OPTION_VERSION:
        printf("peerhop-run %s\n", ph_version());
        exit(0);
    case 'h':
        leave_with_usage(0);
        break;
    }
}

static void parse(struct options *options, int argc, char **argv)
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
    if (options->ranks == 0 || !options->program[0])
        leave_with_usage(STATUS_USAGE);
}

// From here on signals are read, not handled; ranks get back what peerhop-run was started with.
static int block_signals(struct run *run)
{
    sigset_t mask;

    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    for (size_t i = 0; i < sizeof(passed_on) / sizeof(passed_on[0]); i++)
        sigaddset(&mask, passed_on[i]);
    sigprocmask(SIG_BLOCK, &mask, &run->mask_before);
    run->pipe_before = signal(
        SIGPIPE, SIG_IGN); // a closed stdout must not keep us from removing the private store
    run->signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    return run->signals < 0 ? -errno : 0;
}

static int open_store(struct run *run)
{
    struct options *options = &run->options;
    static char job[32];
    char error[256];
    int rc;

    if (!options->store || !*options->store) {
        rc = private_store_start(&run->private_store, error, sizeof(error));
        if (rc < 0) {
            complain("%s (--store names one that runs already)", error);
            return rc;
        }
        options->store = run->private_store.uri;
    }
    if (!options->job || !*options->job) {
        // A store of others may have seen other runs.
        snprintf(job, sizeof(job), "run-%016" PRIx64, phi_incarnation(0));
        options->job = job;
    }
    return 0;
}

static void set_number(const char *name, int64_t number)
{
    char text[24];

    snprintf(text, sizeof(text), "%" PRId64, number);
    setenv(name, text, 1);
}

static void set_environment(const struct run *run, int rank)
{
    set_number("PEERHOP_RANK", rank);
    set_number("PEERHOP_RANKS", run->options.ranks);
    set_number("PEERHOP_LOCAL_RANK", rank);
    setenv("PEERHOP_STORE", run->options.store, 1);
    setenv("PEERHOP_JOB", run->options.job, 1);
    setenv("PEERHOP_EPOCH", "0", 0);
    if (run->options.device)
        setenv("PEERHOP_DEVICE", run->options.device, 1);
    // 8, the driver's own default, lets waiting streams hold up others; 32 is the most it takes.
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

// become_rank is the child: it never returns.
static void become_rank(const struct run *run, int rank, const int *outputs, pid_t parent)
{
    char **program = run->options.program;
    int error;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(STATUS_FAILED);
    // One reader of the terminal is enough.
    if (rank > 0) {
        int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

        dup2(null, STDIN_FILENO);
    }
    if (run->options.tag) {
        dup2(outputs[0], STDOUT_FILENO);
        dup2(outputs[1], STDERR_FILENO);
    }
    set_environment(run, rank);
    signal(SIGPIPE, run->pipe_before);
    sigprocmask(SIG_SETMASK, &run->mask_before, NULL);
    execvp(program[0], program);
    error = errno;
    complain("%s: %s", without_password(program[0]), strerror(error));
    _exit(error == ENOENT ? STATUS_NOT_FOUND : STATUS_NO_EXEC);
}

// open_streams makes the pipes of a rank; outputs are the ends that the rank writes.
static int open_streams(struct rank *rank, int *outputs)
{
    for (int i = 0; i < 2; i++) {
        struct stream *stream = &rank->streams[i];
        int ends[2];

        stream->line = malloc(LINE_SIZE);
        if (!stream->line || pipe2(ends, O_CLOEXEC) < 0)
            return -errno;
        stream->fd = ends[0];
        stream->out = i == 0 ? STDOUT_FILENO : STDERR_FILENO;
        outputs[i] = ends[1];
        fcntl(stream->fd, F_SETFL, O_NONBLOCK);
    }
    return 0;
}

static int start_rank(struct run *run, int index)
{
    struct rank *rank = &run->ranks[index];
    int outputs[2] = {-1, -1};
    pid_t self = getpid();
    int rc = run->options.tag ? open_streams(rank, outputs) : 0;

    if (rc == 0) {
        fflush(NULL);
        rank->pid = fork();
        if (rank->pid == 0)
            become_rank(run, index, outputs, self);
        if (rank->pid < 0) {
            rc = -errno;
            rank->pid = 0;
        } else {
            run->running++;
        }
    }
    for (int i = 0; i < 2; i++) {
        if (outputs[i] >= 0)
            close(outputs[i]);
    }
    if (rc < 0)
        complain("cannot start rank %d: %s", index, strerror(-rc));
    return rc;
}

static void signal_ranks(const struct run *run, int signal)
{
    // No pid of the table can be another process's: a rank leaves the table when it is reaped.
    for (int i = 0; i < run->options.ranks; i++) {
        if (run->ranks[i].pid > 0)
            kill(run->ranks[i].pid, signal);
    }
}

static void ask_to_end(struct run *run)
{
    if (run->kill_at == PHI_FOREVER)
        run->kill_at = phi_deadline(run->options.grace_s * 1000);
    signal_ranks(run, SIGTERM);
    // A stopped process sees nothing but SIGKILL until it goes on.
    signal_ranks(run, SIGCONT);
}

// end asks all ranks to end; the status stays that of what came first.
static void end(struct run *run, int status)
{
    if (run->ending)
        return;
    run->ending = true;
    run->status = status;
    ask_to_end(run);
}

// Returns the exit status that the rank's end stands for.
static int rank_ended(struct run *run, int index, int status)
{
    int code = WIFSIGNALED(status) ? STATUS_SIGNAL + WTERMSIG(status) : WEXITSTATUS(status);

    run->ranks[index].pid = 0;
    run->running--;
    if (code == 0 || run->ending)
        return 0;
    if (WIFSIGNALED(status))
        complain("rank %d was ended by signal %d (%s)", index, WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        complain("rank %d ended with status %d", index, code);
    return code;
}

// A rank that dies takes others with it, and which was first is not seen where several have ended:
// all are named, and one that a signal ended gives the status.
static void reap(struct run *run)
{
    int status, worst = 0;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid == run->private_store.pid) {
            run->private_store.pid = 0;
            complain("the private store ended");
            end(run, STATUS_FAILED);
        }
        // Others are orphans of the ranks, which came to us as their subreaper.
        for (int i = 0; i < run->options.ranks; i++) {
            if (run->ranks[i].pid != pid)
                continue;
            int code = rank_ended(run, i, status);
            worst = code > worst ? code : worst;
        }
    }
    if (worst)
        end(run, worst);
}

static void read_signals(struct run *run)
{
    struct signalfd_siginfo info;

    while (read(run->signals, &info, sizeof(info)) == sizeof(info)) {
        // The ranks are in our process group: what the terminal sent they have already.
        if (info.ssi_signo == SIGTERM)
            ask_to_end(run);
        else if (info.ssi_signo != SIGCHLD && info.ssi_code != SI_KERNEL)
            signal_ranks(run, (int)info.ssi_signo);
    }
    reap(run);
}

static void write_all(int fd, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t n = write(fd, bytes, size);

        if (n < 0 && errno != EINTR && errno != EAGAIN)
            return; // nobody reads any more: the ranks go on without
        if (n > 0) {
            bytes += n;
            size -= (size_t)n;
        }
    }
}

static void print_line(const struct stream *stream, int rank, size_t length)
{
    char text[LINE_SIZE + 24];
    int tag = snprintf(text, sizeof(text), "[%d] ", rank);

    // One write, so that lines of stdout and stderr do not mix.
    memcpy(text + tag, stream->line, length);
    text[(size_t)tag + length] = '\n';
    write_all(stream->out, text, (size_t)tag + length + 1);
}

static void print_lines(struct stream *stream, int rank)
{
    char *newline;

    while ((newline = memchr(stream->line, '\n', stream->length))) {
        size_t length = (size_t)(newline - stream->line);

        print_line(stream, rank, length);
        stream->length -= length + 1;
        memmove(stream->line, newline + 1, stream->length);
    }
    if (stream->length == LINE_SIZE) {
        print_line(stream, rank, stream->length);
        stream->length = 0;
    }
}

// read_stream takes what is there; at the end it prints a last line that has no newline.
static void read_stream(struct stream *stream, int rank)
{
    ssize_t n;

    while ((n = read(stream->fd, stream->line + stream->length, LINE_SIZE - stream->length)) > 0) {
        stream->length += (size_t)n;
        print_lines(stream, rank);
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (stream->length > 0)
        print_line(stream, rank, stream->length);
    stream->length = 0;
    close(stream->fd);
    stream->fd = -1;
}

static void read_streams(struct run *run)
{
    for (int i = 0; run->options.tag && i < run->options.ranks; i++) {
        for (int j = 0; j < 2; j++) {
            if (run->ranks[i].streams[j].fd >= 0)
                read_stream(&run->ranks[i].streams[j], i);
        }
    }
}

static nfds_t fill_polls(const struct run *run, struct pollfd *polls)
{
    nfds_t n = 0;

    polls[n++] = (struct pollfd){.fd = run->signals, .events = POLLIN};
    for (int i = 0; run->options.tag && i < run->options.ranks; i++) {
        for (int j = 0; j < 2; j++) {
            if (run->ranks[i].streams[j].fd >= 0)
                polls[n++] = (struct pollfd){.fd = run->ranks[i].streams[j].fd, .events = POLLIN};
        }
    }
    return n;
}

static void check_time(struct run *run)
{
    if (phi_remaining_ms(run->deadline) == 0) {
        run->deadline = PHI_FOREVER;
        complain("the deadline of %" PRId64 " s has passed", run->options.deadline_s);
        end(run, STATUS_DEADLINE);
    }
    if (phi_remaining_ms(run->kill_at) == 0) {
        run->kill_at = PHI_FOREVER;
        signal_ranks(run, SIGKILL);
    }
}

static void watch(struct run *run)
{
    static struct pollfd polls[1 + 2 * RANKS_MAX];

    while (run->running > 0) {
        int64_t next = run->deadline < run->kill_at ? run->deadline : run->kill_at;

        poll(polls, fill_polls(run, polls), phi_remaining_ms(next));
        read_signals(run);
        read_streams(run);
        check_time(run);
    }
}

// end_orphans kills what ranks have left behind. Children of those become ours in turn, hence the
// loop.
static void end_orphans(void)
{
    char path[64];
    int pid;
    bool any = true;

    snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
    while (any) {
        FILE *children = fopen(path, "re");

        any = false;
        while (children && fscanf(children, "%d", &pid) == 1) {
            kill(pid, SIGKILL);
            waitpid(pid, NULL, 0);
            any = true;
        }
        if (children)
            fclose(children);
    }
}

static int start(struct run *run)
{
    int rc;

    run->ranks = calloc((size_t)run->options.ranks, sizeof(*run->ranks));
    if (!run->ranks) {
        complain("no memory for %" PRId64 " ranks", run->options.ranks);
        run->options.ranks = 0;
        return -ENOMEM;
    }
    for (int i = 0; i < run->options.ranks; i++)
        run->ranks[i].streams[0].fd = run->ranks[i].streams[1].fd = -1;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    rc = block_signals(run);
    if (rc == 0)
        rc = open_store(run);
    for (int i = 0; rc == 0 && i < run->options.ranks; i++)
        rc = start_rank(run, i);
    return rc;
}

int main(int argc, char **argv)
{
    struct run run = {.deadline = PHI_FOREVER, .kill_at = PHI_FOREVER};

    parse(&run.options, argc, argv);
    if (start(&run) < 0)
        end(&run, STATUS_FAILED);
    if (run.options.deadline_s > 0)
        run.deadline = phi_deadline(run.options.deadline_s * 1000);
    watch(&run);
    // The store is stopped before orphans are looked for: it is our child as well.
    private_store_stop(&run.private_store);
    end_orphans();
    read_streams(&run); // what was written last, by ranks or their orphans
    for (int i = 0; i < run.options.ranks; i++) {
        for (int j = 0; j < 2; j++)
            free(run.ranks[i].streams[j].line);
    }
    free(run.ranks);
    return run.status;
}
