// SPDX-License-Identifier: BSD-3-Clause
#include "report.h"

#include <string.h>

const char *bench_size_text(size_t size, char *text, size_t text_size)
{
    static const char suffixes[] = {0, 'K', 'M', 'G'};
    unsigned unit = 0;
    while (unit < 3 && size >= 1024 && size % 1024 == 0) {
        size /= 1024;
        unit++;
    }
    snprintf(text, text_size, "%zu%.1s", size, unit ? &suffixes[unit] : "");
    return text;
}

static const char *or_dash(const char *text)
{
    return text ? text : "-";
}

// Four figures are enough for a person, from 50 ns to terabytes.
static const char *figure(double value, char *text, size_t size)
{
    int decimals = value < 10 ? 3 : value < 100 ? 2 : value < 1000 ? 1 : 0;
    snprintf(text, size, "%.*f", decimals, value);
    return text;
}

#define TABLE_FORMAT "%-19s %8s %-7s %-8s %-15s %-12s %9s %9s %9s %9s %9s %6s %-8s\n"

void bench_report_table_head(FILE *out)
{
    fprintf(out, TABLE_FORMAT, "case", "bytes", "issue", "protocol", "path", "unit", "median",
            "min", "p90", "p99", "limit", "ratio", "verified");
}

// "bandwidth_GBps" is what a program reads, "GB/s" what a person does.
static const char *unit_text(const char *metric)
{
    if (strcmp(metric, "bandwidth_GBps") == 0)
        return "GB/s";
    if (strcmp(metric, "rate_Mops") == 0)
        return "M ops/s";
    if (strcmp(metric, "one_way_us") == 0)
        return "us one way";
    if (strcmp(metric, "three_messages_us") == 0)
        return "us for 3";
    if (strcmp(metric, "fresh_us") == 0)
        return "us a message";
    return strcmp(metric, "half_round_trip_us") == 0 ? "us half trip" : "us";
}

static void overlap_table(FILE *out, const struct bench_overlap *overlap)
{
    char shared[32], beside[64] = "messages";
    if (overlap->receives > 0)
        snprintf(beside, sizeof(beside), "%zu waiting receive%s on %s%zu stream%s",
                 overlap->receives, overlap->receives > 1 ? "s" : "",
                 overlap->streams > 1 ? "each of " : "", overlap->streams,
                 overlap->streams > 1 ? "s" : "");
    fprintf(out, "    %s beside %s (%u threads, %u registers, %s bytes of shared memory)",
            overlap->of_messages ? beside : overlap->kernel,
            overlap->of_messages ? overlap->kernel : beside, overlap->threads, overlap->registers,
            bench_size_text(overlap->shared, shared, sizeof(shared)));
    if (overlap->stuck)
        fprintf(out, ": it did not end in time, %u of %u blocks began", overlap->begun,
                overlap->blocks);
    else if (!overlap->of_messages)
        fprintf(out, ": on %u multiprocessors, idle on %u", overlap->multiprocessors,
                overlap->idle_multiprocessors);
    if (overlap->posted < overlap->receives * overlap->streams)
        fprintf(out, "; -EAGAIN after %zu receives", overlap->posted);
    else if (overlap->refused > 0)
        fprintf(out, "; calls that said -EAGAIN: %zu", overlap->refused);
    fputc('\n', out);
}

static void beside(FILE *out, const struct bench_result *result)
{
    if (result->late)
        fprintf(out, "    %s %llu us late: %.3f us more than on time (limit); with no rest %.3f\n",
                result->late, (unsigned long long)result->late_us,
                result->stats.median - result->limit, result->warm);
    if (result->graphs)
        fprintf(out, "    %llu graphs\n", (unsigned long long)result->graphs);
    if (result->fresh)
        fprintf(out, "    fresh: %.2f imports, %.2f offers, %.2f store commands a message\n",
                result->imports, result->offers, result->store_commands);
}

void bench_report_table(FILE *out, const struct bench_result *result)
{
    const struct bench_stats *stats = &result->stats;
    const bool known = !(result->overlap && result->overlap->stuck);
    char size[32], path[32], figures[6][32];
    snprintf(path, sizeof(path), "%s%s%s", or_dash(result->path), result->path ? "/" : "",
             result->path ? or_dash(result->method) : "");
    fprintf(out, TABLE_FORMAT, result->test, bench_size_text(result->bytes, size, sizeof(size)),
            result->issue, or_dash(result->protocol), path, unit_text(result->metric),
            known ? figure(stats->median, figures[0], 32) : "-",
            known ? figure(stats->min, figures[1], 32) : "-",
            known ? figure(stats->p90, figures[2], 32) : "-",
            known ? figure(stats->p99, figures[3], 32) : "-",
            result->compared ? figure(result->limit, figures[4], 32) : "-",
            result->compared ? figure(result->ratio, figures[5], 32) : "-",
            result->verified ? "yes" : "no");
    if (result->overlap)
        overlap_table(out, result->overlap);
    if (result->exchange)
        fprintf(out,
                "    %zu operations a peer, %zu allocations: %.2f imports, %.2f offers, %.2f store "
                "commands a call\n",
                result->ops, result->segments, result->imports, result->offers,
                result->store_commands);
    beside(out, result);
}

static void json_string(FILE *out, const char *name, const char *value)
{
    fprintf(out, "\"%s\":", name);
    if (!value) {
        fputs("null,", out);
        return;
    }
    putc('"', out);
    for (; *value; value++) {
        if (*value == '"' || *value == '\\')
            putc('\\', out);
        if ((unsigned char)*value < 0x20)
            fprintf(out, "\\u%04x", (unsigned)*value);
        else
            putc(*value, out);
    }
    fputs("\",", out);
}

static void json_number(FILE *out, const char *name, bool known, double value)
{
    if (known)
        fprintf(out, "\"%s\":%.6g,", name, value);
    else
        fprintf(out, "\"%s\":null,", name);
}

static void json_count(FILE *out, const char *name, bool known, uint64_t value)
{
    if (known)
        fprintf(out, "\"%s\":%llu,", name, (unsigned long long)value);
    else
        fprintf(out, "\"%s\":null,", name);
}

static void json_bool(FILE *out, const char *name, bool value)
{
    fprintf(out, "\"%s\":%s,", name, value ? "true" : "false");
}

static void overlap_json(FILE *out, const struct bench_overlap *overlap)
{
    const bool waits = overlap && overlap->receives > 0, seen = overlap && !overlap->of_messages;
    json_string(out, "kernel", overlap ? overlap->kernel : NULL);
    json_string(out, "beside", overlap ? overlap->beside : NULL);
    json_count(out, "threads", overlap, overlap ? overlap->threads : 0);
    json_count(out, "registers", overlap, overlap ? overlap->registers : 0);
    json_count(out, "shared", overlap, overlap ? overlap->shared : 0);
    json_count(out, "receives", waits, waits ? overlap->receives : 0);
    json_count(out, "posted", waits, waits ? overlap->posted : 0);
    json_count(out, "refused", overlap, overlap ? overlap->refused : 0);
    json_count(out, "blocks", seen, seen ? overlap->blocks : 0);
    json_count(out, "begun", seen, seen ? overlap->begun : 0);
    json_count(out, "multiprocessors", seen, seen ? overlap->multiprocessors : 0);
    json_count(out, "idle_multiprocessors", seen, seen ? overlap->idle_multiprocessors : 0);
}

void bench_report_json(FILE *out, const struct bench_result *result)
{
    const bool known = !(result->overlap && result->overlap->stuck);
    putc('{', out);
    json_string(out, "case", result->test);
    json_string(out, "protocol", result->protocol);
    json_string(out, "issue", result->issue);
    json_bool(out, "group", result->group);
    json_string(out, "late", result->late);
    json_count(out, "late_us", result->late, result->late_us);
    json_number(out, "warm", result->late, result->warm);
    json_count(out, "graphs", result->graphs > 0, (uint64_t)result->graphs);
    json_bool(out, "fresh", result->fresh);
    json_string(out, "path", result->path);
    json_string(out, "method", result->method);
    json_count(out, "ll_max", result->sm_max > 0 || result->ll_max > 0, result->ll_max);
    json_count(out, "sm_max", result->sm_max > 0 || result->ll_max > 0, result->sm_max);
    json_string(out, "wait", result->wait);
    json_string(out, "kind", result->kind);
    json_count(out, "ranks", true, (uint64_t)result->ranks);
    json_count(out, "bytes", true, result->bytes);
    json_count(out, "channels", !result->exchange, result->channels);
    json_count(out, "ops", result->exchange, result->ops);
    json_count(out, "segments", result->exchange, result->segments);
    json_count(out, "iterations", true, result->iterations);
    json_string(out, "metric", result->metric);
    json_number(out, "median", known, result->stats.median);
    json_number(out, "min", known, result->stats.min);
    json_number(out, "p90", known, result->stats.p90);
    json_number(out, "p99", known, result->stats.p99);
    json_number(out, "limit", result->compared, result->limit);
    json_number(out, "ratio", result->compared, result->ratio);
    json_string(out, "limit_of", result->limit_of);
    json_string(out, "nccl_version", result->nccl_version);
    json_string(out, "nccl_path", result->nccl_path);
    const bool exchanges = result->exchange || result->fresh;
    json_number(out, "imports", exchanges, result->imports);
    json_number(out, "offers", exchanges, result->offers);
    json_number(out, "store_commands", exchanges, result->store_commands);
    overlap_json(out, result->overlap);
    json_bool(out, "verified", result->verified);
    json_string(out, "device", result->device);
    // Every writer above ends with a comma; a last member without one closes the object.
    fprintf(out, "\"version\":1}\n");
}
