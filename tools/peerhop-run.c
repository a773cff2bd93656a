// SPDX-License-Identifier: BSD-3-Clause
// peerhop-run starts the ranks of a job on this machine, and ends them together.
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/random.h"
#include "child.h"
#include "front.h"
#include "hide.h"
#include "hosts.h"
#include "output.h"
#include "private_store.h"
#include "run_options.h"
#include "tagged.h"
#include "written.h"

// What SIGKILL ends takes, at most: a driver may have much to free.
#define KILLED_MS 10000

struct rank {
    struct child child;
    bool left;                // behind: it could not be ended
    struct tagged streams[2]; // stdout and stderr, where lines are tagged
};

struct run {
    struct options options;
    struct private_store private_store;
    struct rank *ranks;
    int running;
    int status; // of the first rank that failed
    bool ending;
    bool asked;    // the ranks were, to end
    bool killed;   // the ranks were, or not, as some may not be
    bool left;     // some process of the run is left behind
    bool given_up; // what nobody reads is dropped, and what does not end is left
    bool lost[2];  // an output cannot be written, which was said
    int64_t deadline, kill_at;
    int signals;               // signalfd
    int room;                  // eventfd: an output has room again
    struct output *outputs[2]; // of our stdout and stderr, once they are opened; maybe one
    struct child_signals signals_before;
    struct rlimit files_before;
};

static const int passed_on[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

// Of the run, while ranks are watched: it waits for nobody. A reader that takes nothing misses it.
static void tell(const struct run *run, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void tell(const struct run *run, const char *format, ...)
{
    char text[SENTENCE_SIZE], line[SENTENCE_SIZE + 32];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    output_put(run->outputs[1], line,
               (size_t)snprintf(line, sizeof(line), "peerhop-run: %s\n", text), 0);
}

// From here on signals are read, not handled; ranks get back what peerhop-run was started with.
static int take_signals(struct run *run)
{
    sigset_t mask;

    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    for (size_t i = 0; i < sizeof(passed_on) / sizeof(passed_on[0]); i++)
        sigaddset(&mask, passed_on[i]);
    child_signals(&run->signals_before, &mask);
    signal(SIGPIPE, SIG_IGN); // a closed stdout must not keep us from removing the private store
    run->signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (run->signals >= 0)
        return 0;
    complain("cannot take signals, and so watch ranks: signalfd: %s", strerror(errno));
    return -errno;
}

// A rank needs up to three descriptors here, and the usual limit, for whoever uses select(), is
// 1024. Ranks get back what peerhop-run was started with.
static void take_files(struct run *run)
{
    struct rlimit files;

    getrlimit(RLIMIT_NOFILE, &files);
    run->files_before = files;
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

// What we open must not get the number of a closed stdin, stdout or stderr. To read and write
// these fails as before, and ranks find them closed.
static void hold_files(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0)
            open("/dev/null", (fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) | O_CLOEXEC);
    }
}

static bool is_one_file(int a, int b)
{
    struct stat first, second;

    return fstat(a, &first) == 0 && fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}

static int open_outputs(struct run *run)
{
    int rc;

    run->room = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    rc = run->room < 0 ? -errno : output_open(STDERR_FILENO, run->room, &run->outputs[1]);
    // Two threads that write to one file would mix their lines.
    if (rc == 0 && is_one_file(STDOUT_FILENO, STDERR_FILENO))
        run->outputs[0] = run->outputs[1];
    else if (rc == 0)
        rc = output_open(STDOUT_FILENO, run->room, &run->outputs[0]);
    if (rc < 0)
        complain("no thread to write output: %s", strerror(-rc));
    return rc;
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
            tell(run, "%s (--store names another)", error);
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

// The number in the job of what is the index-th rank here.
static int number_of(const struct run *run, int index)
{
    return (int)run->options.first + index;
}

static void set_environment(const struct run *run, int rank)
{
    set_number("PEERHOP_RANK", number_of(run, rank));
    set_number("PEERHOP_RANKS", run->options.all);
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

    if (!child_bind(parent, SIGKILL))
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
    child_signals_restore(&run->signals_before);
    setrlimit(RLIMIT_NOFILE, &run->files_before);
    execvp(program[0], program);
    error = errno;
    complain("%s: %s", without_password(program[0]), strerror(error));
    _exit(error == ENOENT ? STATUS_NOT_FOUND : STATUS_NO_EXEC);
}

// open_streams makes the pipes of a rank; ends are those that the rank writes.
static int open_streams(const struct run *run, int rank, int *ends)
{
    int rc = 0;

    for (int i = 0; i < 2 && rc == 0; i++)
        rc = tagged_open(&run->ranks[rank].streams[i], number_of(run, rank), run->outputs[i],
                         &ends[i]);
    return rc;
}

static int start_rank(struct run *run, int index)
{
    struct rank *rank = &run->ranks[index];
    int outputs[2] = {-1, -1};
    pid_t self = getpid();
    int rc = run->options.tag ? open_streams(run, index, outputs) : 0;

    if (rc == 0)
        rc = child_fork(&rank->child);
    if (rc == 0)
        become_rank(run, index, outputs, self);
    if (rc > 0)
        run->running++;
    for (int i = 0; i < 2; i++) {
        if (outputs[i] >= 0)
            close(outputs[i]);
    }
    if (rc < 0)
        tell(run, "cannot start rank %d: %s", number_of(run, index), strerror(-rc));
    return rc < 0 ? rc : 0;
}

static void signal_ranks(const struct run *run, int signal)
{
    for (int i = 0; i < run->options.ranks; i++)
        child_signal(&run->ranks[i].child, signal);
}

static void ask_to_end(struct run *run)
{
    run->asked = true;
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
    const int code = child_code(status), number = number_of(run, index);

    run->running--;
    if (code == 0 || run->ending)
        return 0;
    if (status == CHILD_LOST)
        tell(run, "rank %d has ended, and another process has taken its status", number);
    else if (WIFSIGNALED(status))
        tell(run, "rank %d was ended by signal %d (%s)", number, WTERMSIG(status),
             strsignal(WTERMSIG(status)));
    else
        tell(run, "rank %d ended with status %d", number, code);
    return code;
}

static bool is_rank(const struct run *run, pid_t pid)
{
    for (int i = 0; i < run->options.ranks; i++) {
        if (run->ranks[i].child.pid == pid)
            return true;
    }
    return false;
}

// Orphans of the ranks come to us, as their subreaper. The number of one that has ended is its own
// until we collect it. What is ours is left to reap(), which its signal calls again.
static void reap_orphans(const struct run *run)
{
    for (;;) {
        siginfo_t info = {0};

        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
            return;
        if (info.si_pid == run->private_store.keeper.pid || is_rank(run, info.si_pid))
            return;
        waitpid(info.si_pid, NULL, 0);
    }
}

// A rank that dies takes others with it, and which was first is not seen where several have ended:
// all are named, and one that a signal ended gives the status.
static void reap(struct run *run)
{
    int status, worst = 0;

    child_ended(&run->private_store.keeper, &status); // killed: its work is done at our end
    for (int i = 0; i < run->options.ranks; i++) {
        if (child_ended(&run->ranks[i].child, &status) && !run->ranks[i].left) {
            int code = rank_ended(run, i, status);
            worst = code > worst ? code : worst;
        }
    }
    reap_orphans(run);
    if (worst)
        end(run, worst);
}

static void read_signals(struct run *run)
{
    struct signalfd_siginfo info;

    while (read(run->signals, &info, sizeof(info)) == sizeof(info)) {
        // With no rank left it is about the output that nobody reads.
        run->given_up |= run->running == 0 && info.ssi_signo != SIGCHLD;
        // The ranks are in our process group: what the terminal sent they have already.
        if (info.ssi_signo == SIGTERM)
            ask_to_end(run);
        else if (info.ssi_signo != SIGCHLD && info.ssi_code != SI_KERNEL)
            signal_ranks(run, (int)info.ssi_signo);
    }
    reap(run);
}

// The n-th stream of all; NULL: it has ended, or is not to be read before its output has room.
static struct tagged *open_stream(const struct run *run, int n)
{
    struct tagged *stream = &run->ranks[n / 2].streams[n % 2];

    return tagged_ready(stream) ? stream : NULL;
}

static int stream_count(const struct run *run)
{
    return run->options.tag ? 2 * (int)run->options.ranks : 0;
}

static void read_streams(struct run *run)
{
    uint64_t rings;
    ssize_t ignored = read(run->room, &rings, sizeof(rings));

    (void)ignored;
    for (int i = 0; i < stream_count(run); i++) {
        if (open_stream(run, i))
            tagged_read(open_stream(run, i));
    }
}

static nfds_t fill_polls(const struct run *run, struct pollfd *polls)
{
    nfds_t n = 0;

    polls[n++] = (struct pollfd){.fd = run->signals, .events = POLLIN};
    polls[n++] = (struct pollfd){.fd = run->room, .events = POLLIN};
    for (int i = 0; i < stream_count(run); i++) {
        if (open_stream(run, i))
            polls[n++] = (struct pollfd){.fd = open_stream(run, i)->fd, .events = POLLIN};
    }
    return n;
}

// Why what was sent SIGKILL is left behind; rc: what child_signal has returned.
static const char *why_left(int rc)
{
    return rc < 0 ? strerror(-rc) : "SIGKILL has not ended it in time";
}

// Sends SIGKILL, and gives up those that may not be signalled, as a set-user-ID program may not,
// and in the end those that it has not ended.
static void kill_ranks(struct run *run)
{
    for (int i = 0; i < run->options.ranks; i++) {
        struct rank *rank = &run->ranks[i];
        int rc = child_signal(&rank->child, SIGKILL);

        if (rank->child.pid == 0 || rank->left || (rc == 0 && !run->killed))
            continue;
        tell(run, "rank %d, process %d, cannot be ended and is left behind: %s", number_of(run, i),
             (int)rank->child.pid, why_left(rc));
        rank->left = run->left = true;
        run->running--;
        end(run, STATUS_FAILED);
    }
    run->killed = true;
    run->kill_at = run->running > 0 ? phi_deadline(KILLED_MS) : PHI_FOREVER;
}

static void check_outputs(struct run *run)
{
    for (int i = 0; i < 2; i++) {
        const int rc = output_error(run->outputs[i]);

        if (rc == 0 || run->lost[i])
            continue;
        run->lost[i] = true;
        tell(run, "standard %s cannot be written: %s; the rest of it is lost",
             i == 0 ? "output" : "error", strerror(-rc));
    }
}

// Names the ranks that have not ended: whoever looks for what hangs begins with them.
static void tell_deadline(const struct run *run)
{
    char ranks[256] = "";
    size_t used = 0;

    for (int i = 0; i < run->options.ranks && used < sizeof(ranks) - 16; i++) {
        if (run->ranks[i].child.pid)
            used += (size_t)snprintf(ranks + used, sizeof(ranks) - used, "%s%d", used ? ", " : "",
                                     number_of(run, i));
    }
    if (used >= sizeof(ranks) - 16)
        snprintf(ranks + used, sizeof(ranks) - used, " ...");
    tell(run, "the deadline of %" PRId64 " s has passed; still running: rank %s",
         run->options.deadline_s, ranks);
}

static void check_time(struct run *run)
{
    if (phi_remaining_ms(run->deadline) == 0) {
        run->deadline = PHI_FOREVER;
        tell_deadline(run);
        end(run, STATUS_DEADLINE);
    }
    if (phi_remaining_ms(run->kill_at) == 0) {
        run->given_up = true;
        kill_ranks(run);
    }
}

static void watch_once(struct run *run)
{
    static struct pollfd polls[2 + 2 * RANKS_MAX];
    int64_t next = run->deadline < run->kill_at ? run->deadline : run->kill_at;

    poll(polls, fill_polls(run, polls), phi_remaining_ms(next));
    read_signals(run);
    read_streams(run);
    check_outputs(run);
    check_time(run);
}

static bool is_written(const struct run *run)
{
    for (int i = 0; i < stream_count(run); i++) {
        if (run->ranks[i / 2].streams[i % 2].fd >= 0)
            return false;
    }
    return output_done(run->outputs[0]) && output_done(run->outputs[1]);
}

// Of the processes that were left behind nothing more is awaited.
static void end_streams(const struct run *run)
{
    for (int i = 0; i < stream_count(run); i++) {
        struct tagged *stream = open_stream(run, i);

        if (stream && poll(&(struct pollfd){.fd = stream->fd, .events = POLLIN}, 1, 0) == 0)
            tagged_end(stream);
    }
}

// The run ends when its output is read, as that of any program in a pipe. Where ranks were to end,
// and for whoever ends it now, it has no longer than the grace, and a second at least.
static void write_rest(struct run *run)
{
    const int64_t grace = run->options.grace_s > 0 ? run->options.grace_s * 1000 : 1000;

    run->given_up = false;
    if (run->asked || run->left)
        run->kill_at = phi_deadline(grace);
    read_streams(run);
    for (;;) {
        if (run->left)
            end_streams(run);
        if (is_written(run) || run->given_up)
            break;
        watch_once(run);
    }
    check_outputs(run);
    if (run->status == 0 && (run->lost[0] || run->lost[1]))
        run->status = STATUS_FAILED;
    if (is_written(run))
        return;
    tell(run, "output was dropped: nobody has read it");
    if (run->status == 0)
        run->status = STATUS_FAILED;
    // Where another reader reads that, it comes at once.
    for (int64_t until = phi_deadline(1000);
         !output_done(run->outputs[1]) && phi_remaining_ms(until) > 0;)
        usleep(1000);
}

struct orphans {
    struct run *run;
    bool killed, ended; // some were: theirs come next
    bool last;          // no more is waited for
};

static void end_orphan(void *opaque, struct child *orphan)
{
    struct orphans *orphans = opaque;
    struct run *run = orphans->run;
    int status, rc;

    if (is_rank(run, orphan->pid)) // which is left behind, too
        return;
    if (child_ended(orphan, &status)) {
        orphans->ended = true;
        return;
    }
    rc = child_signal(orphan, SIGKILL);
    orphans->killed |= rc == 0;
    if (orphans->last) {
        run->left = true;
        tell(run,
             "process %d, which the ranks have started, cannot be ended and is left behind: %s",
             (int)orphan->pid, why_left(rc));
    }
}

// end_orphans kills what ranks have left behind. Children of those become ours in turn, hence the
// loop. It ends at the deadline and by signals, too.
static void end_orphans(struct run *run)
{
    struct orphans orphans = {.run = run};
    const int64_t longest = phi_deadline(KILLED_MS);

    run->given_up = false;
    run->kill_at = run->deadline < longest ? run->deadline : longest;
    do {
        orphans.killed = orphans.ended = false;
        children_each(end_orphan, &orphans);
        if (orphans.killed)
            watch_once(run);
    } while ((orphans.killed || orphans.ended) && !run->given_up);
    orphans.last = true;
    children_each(end_orphan, &orphans);
    run->kill_at = PHI_FOREVER;
}

// What is needed before there is anything to end.
static int prepare(struct run *run)
{
    int rc;

    run->ranks = calloc((size_t)run->options.ranks, sizeof(*run->ranks));
    if (!run->ranks) {
        complain("no memory for %" PRId64 " ranks", run->options.ranks);
        return -ENOMEM;
    }
    for (int i = 0; i < run->options.ranks; i++)
        run->ranks[i].streams[0].fd = run->ranks[i].streams[1].fd = -1;
    take_files(run);
    rc = phi_random_check();
    if (rc < 0) {
        complain("no random numbers for the name of a job: getrandom: %s", strerror(-rc));
        return rc;
    }
    rc = take_signals(run);
    if (rc == 0)
        rc = front_part(run->signals);
    return rc < 0 ? rc : open_outputs(run);
}

static int start(struct run *run)
{
    int rc;

    prctl(PR_SET_CHILD_SUBREAPER, 1);
    rc = open_store(run);
    for (int i = 0; rc == 0 && i < run->options.ranks; i++)
        rc = start_rank(run, i);
    return rc;
}

int main(int argc, char **argv)
{
    struct run run = {.deadline = PHI_FOREVER, .kill_at = PHI_FOREVER};

    hold_files();
    options_parse(&run.options, argc, argv);
    if (run.options.hosts)
        return all_written("peerhop-run", hosts_print(&run.options, argv[0]));
    if (prepare(&run) < 0) {
        free(run.ranks);
        return STATUS_FAILED;
    }
    if (start(&run) < 0)
        end(&run, STATUS_FAILED);
    if (run.options.deadline_s > 0)
        run.deadline = phi_deadline(run.options.deadline_s * 1000);
    while (run.running > 0)
        watch_once(&run);
    // The store is stopped before orphans are looked for: it is our child as well.
    private_store_stop(&run.private_store);
    end_orphans(&run);
    write_rest(&run); // what was written last, by ranks or their orphans, too
    for (int i = 0; i < stream_count(&run); i++)
        free(run.ranks[i / 2].streams[i % 2].line);
    free(run.ranks);
    return run.status;
}
