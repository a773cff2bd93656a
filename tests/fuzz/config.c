// SPDX-License-Identifier: BSD-3-Clause
// Configuration: settings, environment and launchers' variables, and the store's URI in them. A
// line of the input is a setting, or with a leading '$' a variable of the environment.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "store/uri.h"

enum { SETTINGS_MAX = 16 };

static size_t read_lines(char *text, const char **settings)
{
    size_t n = 0;

    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        char *equals = strchr(line, '=');

        if (line[0] != '$') {
            if (n < SETTINGS_MAX)
                settings[n++] = line;
        } else if (equals && equals > line + 1) {
            *equals = 0;
            setenv(line + 1, equals + 1, 1);
        }
    }
    settings[n] = NULL;
    return n;
}

static bool has(const char *text, const char *part)
{
    return text && strstr(text, part);
}

// No line of the table shows the password of its URI, and no address does.
static void check_password(const struct phi_config *config, const struct phi_store_uri *uri,
                           const char *printed)
{
    const char *line = strstr(printed, "PEERHOP_STORE=");
    char shown[4096];

    HOLD(line);
    snprintf(shown, sizeof(shown), "%.*s", (int)strcspn(line, "\n"), line);
    if (!uri->password || strlen(uri->password) < 6 || has(uri->host, uri->password) ||
        has(uri->user, uri->password) || has(uri->path, uri->password) ||
        has("PEERHOP_STORE=redis://unix:///?db=***", uri->password) ||
        has("PEERHOP_STORE=unix://:***@/?db=", uri->password) || strlen(config->store) > 2000)
        return; // a word that is there whatever the password
    HOLD(!strstr(shown, uri->password) && !strstr(uri->address, uri->password));
}

static void print(const struct phi_config *config)
{
    struct phi_store_uri uri;
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    HOLD(out);
    phi_config_print(out, config);
    fclose(out);
    if (phi_store_uri_parse(&uri, config->store, &fuzz_context()->report) == 0) {
        check_password(config, &uri, text);
        phi_store_uri_fini(&uri);
    }
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *settings[SETTINGS_MAX + 1];
    struct phi_launcher launcher;
    struct phi_config config;
    char *text = malloc(size + 1);

    HOLD(text && fuzz_context());
    memcpy(text, data, size);
    text[size] = 0;
    clearenv();
    read_lines(text, settings);
    phi_launcher_read(&launcher);
    HOLD(launcher.rank >= -1 && launcher.ranks >= -1 &&
         memchr(launcher.job, 0, sizeof(launcher.job)));
    if (phi_config_read(&config, settings, &fuzz_context()->report) == 0) {
        print(&config);
        phi_config_fini(&config);
    }
    free(text);
    return 0;
}
