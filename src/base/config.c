// SPDX-License-Identifier: BSD-3-Clause
#include "base/config.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

#define PREFIX "PEERHOP_"
enum { PREFIX_LENGTH = sizeof(PREFIX) - 1 };

enum kind { KIND_STRING, KIND_NUMBER, KIND_CHOICE };

struct variable {
    enum kind kind;
    size_t offset;    // of the member in struct phi_config
    const char *name; // without the prefix
    const char *text; // default of strings and choices
    int64_t number, low, high;
    const char *words; // "a|b|c"
    const char *help;
};

#define STRING(member, env, value, line)                                                           \
    {.kind = KIND_STRING,                                                                          \
     .offset = offsetof(struct phi_config, member),                                                \
     .name = (env),                                                                                \
     .text = (value),                                                                              \
     .help = (line)},
#define NUMBER(member, env, value, least, most, line)                                              \
    {.kind = KIND_NUMBER,                                                                          \
     .offset = offsetof(struct phi_config, member),                                                \
     .name = (env),                                                                                \
     .number = (value),                                                                            \
     .low = (least),                                                                               \
     .high = (most),                                                                               \
     .help = (line)},
#define CHOICE(member, env, value, list, line)                                                     \
    {.kind = KIND_CHOICE,                                                                          \
     .offset = offsetof(struct phi_config, member),                                                \
     .name = (env),                                                                                \
     .text = (value),                                                                              \
     .words = (list),                                                                              \
     .help = (line)},

static const struct variable variables[] = {PHI_CONFIG_MAP(STRING, NUMBER, CHOICE)};

enum { VARIABLES = sizeof(variables) / sizeof(variables[0]) };

// The index of the first measuring aid.
enum {
    AIDS = sizeof((const struct variable[]){PHI_CONFIG_USER_MAP(STRING, NUMBER, CHOICE)}) /
           sizeof(struct variable)
};

static void *member_of(const struct phi_config *config, const struct variable *variable)
{
    return (char *)config + variable->offset;
}

// word_at returns the word of "a|b|c" with this index and its length, or NULL after the last.
static const char *word_at(const char *words, int index, size_t *length)
{
    for (; index > 0; index--) {
        words = strchr(words, '|');
        if (!words)
            return NULL;
        words++;
    }
    *length = strcspn(words, "|");
    return words;
}

static int index_of(const char *words, const char *text)
{
    const char *word;
    size_t length;

    for (int i = 0; (word = word_at(words, i, &length)); i++) {
        if (strlen(text) == length && memcmp(word, text, length) == 0)
            return i;
    }
    return -1;
}

static int set_string(struct phi_config *config, const struct variable *variable, const char *text,
                      struct phi_report *report)
{
    char *copy = strdup(text ? text : variable->text);

    if (!copy)
        return phi_fail(report, -ENOMEM, "no memory for the configuration");
    *(char **)member_of(config, variable) = copy;
    return 0;
}

// number_from takes decimal digits only. Other programs read "0x10", "1e3" and " 5" in several
// ways.
static bool number_from(const char *text, int64_t *number)
{
    char *end;

    if (strspn(text, "-0123456789") != strlen(text))
        return false;
    errno = 0;
    *number = strtoll(text, &end, 10);
    return errno == 0 && end != text && *end == 0;
}

static int set_number(struct phi_config *config, const struct variable *variable, const char *text,
                      struct phi_report *report)
{
    int64_t number = variable->number;

    if (text && *text &&
        (!number_from(text, &number) || number < variable->low || number > variable->high))
        return phi_fail(report, -EINVAL,
                        PREFIX "%s=%s: must be a number from %" PRId64 " to %" PRId64,
                        variable->name, text, variable->low, variable->high);
    *(int64_t *)member_of(config, variable) = number;
    return 0;
}

static int set_choice(struct phi_config *config, const struct variable *variable, const char *text,
                      struct phi_report *report)
{
    int index = index_of(variable->words, text && *text ? text : variable->text);

    if (index < 0)
        return phi_fail(report, -EINVAL, PREFIX "%s=%s: must be one of %s", variable->name, text,
                        variable->words);
    *(int *)member_of(config, variable) = index;
    return 0;
}

// name_length returns the length of NAME in "PEERHOP_NAME=value", or 0 for other text.
static size_t name_length(const char *setting)
{
    if (strncmp(setting, PREFIX, PREFIX_LENGTH) != 0 || !strchr(setting, '='))
        return 0;
    return (size_t)(strchr(setting, '=') - setting) - PREFIX_LENGTH;
}

static const struct variable *variable_of(const char *setting)
{
    size_t length = name_length(setting);

    for (size_t i = 0; length > 0 && i < VARIABLES; i++) {
        if (strlen(variables[i].name) == length &&
            memcmp(variables[i].name, setting + PREFIX_LENGTH, length) == 0)
            return &variables[i];
    }
    return NULL;
}

// These are variables of the programs around the library, which share its prefix: examples,
// benchmarks, the stand-in, tests. A name that ends in '_' is the beginning of several.
static const char *const others[] = {"CHART", "FAULT_",  "FUZZ_", "INFO",    "LIBRARY",  "LITMUS_",
                                     "PERF",  "RETIRE_", "RUN",   "STANDIN", "STANDIN_", "TEST_"};

static bool is_other(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        size_t n = strlen(others[i]);

        if (strncmp(name, others[i], n) == 0 && (n == length || others[i][n - 1] == '_'))
            return true;
    }
    return false;
}

enum { NAME_MAX_LENGTH = 40 }; // longer ones resemble none of ours

// distance is how many letters must be put in, left out or changed to make one name of the other.
// The other is in capitals.
static size_t distance(const char *a, size_t length, const char *b)
{
    size_t row[NAME_MAX_LENGTH + 1];

    for (size_t i = 0; i <= length; i++)
        row[i] = i;
    for (size_t j = 1; *b; b++, j++) {
        size_t corner = row[0];

        row[0] = j;
        for (size_t i = 1; i <= length; i++) {
            size_t changed = corner + (toupper((unsigned char)a[i - 1]) != *b);
            size_t fewer = row[i] < row[i - 1] ? row[i] : row[i - 1];

            corner = row[i];
            row[i] = changed < fewer + 1 ? changed : fewer + 1;
        }
    }
    return row[length];
}

// nearest returns the variable that a wrong name means most likely, or NULL.
static const struct variable *nearest(const char *name, size_t length)
{
    size_t limit = 3 + length / 6;
    const struct variable *found = NULL;

    for (size_t i = 0; length <= NAME_MAX_LENGTH && i < VARIABLES; i++) {
        size_t far = distance(name, length, variables[i].name);

        if (far < limit && far < length) {
            found = &variables[i];
            limit = far;
        }
    }
    return found;
}

enum { HINT_SIZE = 96 };

// hint returns the text that follows the sentence about an unknown name.
static const char *hint(const char *setting, char text[HINT_SIZE])
{
    bool prefixed = strncasecmp(setting, PREFIX, PREFIX_LENGTH) == 0;
    const char *name = prefixed ? setting + PREFIX_LENGTH : setting;
    const struct variable *variable = nearest(name, strcspn(name, "="));

    if (variable)
        snprintf(text, HINT_SIZE, "did you mean " PREFIX "%s?", variable->name);
    else
        snprintf(text, HINT_SIZE, "peerhop-info --config lists those that there are");
    return text;
}

// The message never contains the value: under a misspelt name it may be a password.
static int check_settings(const char *const *settings, struct phi_report *report)
{
    char text[HINT_SIZE];

    for (; settings && *settings; settings++) {
        if (!variable_of(*settings))
            return phi_fail(report, -EINVAL,
                            "setting '%.*s' is not PEERHOP_NAME=value with a known name: %s",
                            (int)strcspn(*settings, "="), *settings, hint(*settings, text));
    }
    return 0;
}

static void check_environment(struct phi_report *report)
{
    char text[HINT_SIZE];

    for (char **entry = environ; entry && *entry; entry++) {
        size_t length = name_length(*entry);

        if (length > 0 && !variable_of(*entry) && !is_other(*entry + PREFIX_LENGTH, length))
            phi_log(report, PH_LOG_WARN, "unknown variable %.*s in the environment: %s",
                    (int)strcspn(*entry, "="), *entry, hint(*entry, text));
    }
}

// value_of returns the variable's text, or NULL where nobody sets it. The last of several
// settings wins.
static const char *value_of(const struct variable *variable, const char *const *settings)
{
    const char *value = NULL;
    char name[64];

    for (; settings && *settings; settings++) {
        if (variable_of(*settings) == variable)
            value = strchr(*settings, '=') + 1;
    }
    if (value)
        return value;
    snprintf(name, sizeof(name), PREFIX "%s", variable->name);
    return getenv(name);
}

static int set(struct phi_config *config, const struct variable *variable, const char *text,
               struct phi_report *report)
{
    switch (variable->kind) {
    case KIND_STRING:
        return set_string(config, variable, text, report);
    case KIND_NUMBER:
        return set_number(config, variable, text, report);
    default:
        return set_choice(config, variable, text, report);
    }
}

// phi_config_read refuses a wrong value, and logs that at the default level.
enum ph_log_level phi_config_level(const char *const *settings)
{
    const struct variable *log = variable_of(PREFIX "LOG=");
    const char *text = value_of(log, settings);
    int level = text ? index_of(log->words, text) : -1;

    return (enum ph_log_level)(level >= 0 ? level : index_of(log->words, log->text));
}

int phi_config_read(struct phi_config *config, const char *const *settings,
                    struct phi_report *report)
{
    struct phi_config fresh = {0};
    int rc = check_settings(settings, report);

    for (size_t i = 0; rc == 0 && i < VARIABLES; i++)
        rc = set(&fresh, &variables[i], value_of(&variables[i], settings), report);
    if (rc < 0) {
        phi_config_fini(&fresh);
        return rc;
    }
    check_environment(report);
    *config = fresh;
    return 0;
}

void phi_config_fini(struct phi_config *config)
{
    for (size_t i = 0; i < VARIABLES; i++) {
        if (variables[i].kind == KIND_STRING) {
            char **text = member_of(config, &variables[i]);

            if (*text)
                explicit_bzero(*text, strlen(*text));
            free(*text);
            *text = NULL;
        }
    }
}

const char *phi_config_password(const char *uri, const char **end)
{
    const char *at = strrchr(uri, '@');
    const char *scheme = strstr(uri, "://");
    const char *rest, *colon;

    if (at && scheme && at < scheme)
        scheme = NULL;
    rest = scheme ? scheme + 3 : uri;
    *end = at ? at : rest + strcspn(rest, "/?#");
    colon = memchr(rest, ':', (size_t)(*end - rest));
    if (colon) {
        bool port = *rest == '[' || strspn(colon + 1, "0123456789") == (size_t)(*end - colon - 1);
        return at || !port ? colon : NULL;
    }
    return at && !scheme ? uri : NULL;
}

static void print_store(FILE *out, const char *text)
{
    const char *end;
    const char *password = phi_config_password(text, &end);
    const char *query;

    if (password)
        fprintf(out, "%.*s%s***", (int)(password - text), text, *password == ':' ? ":" : "");
    else
        end = text;
    // The only parameter is db. Another one may hold anything, a password for instance.
    query = strchr(end, '?');
    if (query && strncmp(query, "?db=", 4) != 0)
        fprintf(out, "%.*s?***", (int)(query - end), end);
    else
        fputs(end, out);
}

static void print_string(FILE *out, const struct variable *variable, const char *text)
{
    if (!*text)
        fputs("(empty)", out);
    else if (variable->offset == offsetof(struct phi_config, store_password))
        fputs("***", out);
    else if (variable->offset == offsetof(struct phi_config, store))
        print_store(out, text);
    else
        fputs(text, out);
}

static void print_value(FILE *out, const struct phi_config *config, const struct variable *variable)
{
    const void *member = member_of(config, variable);
    const char *word;
    size_t length = 0;

    switch (variable->kind) {
    case KIND_STRING:
        print_string(out, variable, *(char *const *)member);
        break;
    case KIND_NUMBER:
        fprintf(out, "%" PRId64, *(const int64_t *)member);
        break;
    default:
        word = word_at(variable->words, *(const int *)member, &length);
        fprintf(out, "%.*s", (int)length, word);
    }
}

static void print_range(FILE *out, const struct variable *variable)
{
    switch (variable->kind) {
    case KIND_STRING:
        fprintf(out, "default %s", *variable->text ? variable->text : "(empty)");
        break;
    case KIND_NUMBER:
        fprintf(out, "default %" PRId64 ", %" PRId64 " to %" PRId64, variable->number,
                variable->low, variable->high);
        break;
    default:
        fprintf(out, "default %s, one of %s", variable->text, variable->words);
    }
}

void phi_config_print(FILE *out, const struct phi_config *config)
{
    for (size_t i = 0; i < VARIABLES; i++) {
        if (i == AIDS)
            fputs("\nMeasuring aids: they force what the library chooses.\n\n", out);
        fprintf(out, PREFIX "%s=", variables[i].name);
        print_value(out, config, &variables[i]);
        fputs("\n    ", out);
        print_range(out, &variables[i]);
        fprintf(out, "\n    %s\n", variables[i].help);
    }
}
