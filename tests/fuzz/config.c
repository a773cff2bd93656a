// SPDX-License-Identifier: BSD-3-Clause
// Configuration: settings, environment and launchers' variables, and the store's URI in them. A
// line of the input is a setting, or with a leading '$' a variable of the environment.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "base/launcher.h"
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

static char *printed(const struct phi_config *config)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    HOLD(out);
    phi_config_print(out, config);
    fclose(out);
    return text;
}

// What is printed is the same whatever the password in the store's URI, and so is the address.
static void check_password(const struct phi_config *config, const struct phi_store_uri *uri)
{
    const char *rest = strstr(config->store, "://") + 3;
    const char *at = memrchr(rest, '@', strcspn(rest, "/?#"));
    struct phi_config other = *config;
    struct phi_store_uri other_uri;
    char store[4096];

    HOLD(at && strlen(config->store) < sizeof(store) - 16);
    snprintf(store, sizeof(store), "%.*s:another%s", (int)(strchr(rest, ':') - config->store),
             config->store, at);
    other.store = store;
    char *text = printed(config), *other_text = printed(&other);
    HOLD(strcmp(text, other_text) == 0);
    HOLD(phi_store_uri_parse(&other_uri, store, &fuzz_context()->report) == 0);
    HOLD(strcmp(uri->address, other_uri.address) == 0);
    phi_store_uri_fini(&other_uri);
    free(text);
    free(other_text);
}

static void print(const struct phi_config *config)
{
    struct phi_store_uri uri;

    if (phi_store_uri_parse(&uri, config->store, &fuzz_context()->report) != 0) {
        free(printed(config));
        return;
    }
    if (uri.password)
        check_password(config, &uri);
    else
        free(printed(config));
    phi_store_uri_fini(&uri);
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
         memchr(launcher.job, 0, sizeof(launcher.job)) &&
         memchr(launcher.lacks, 0, sizeof(launcher.lacks)));
    if (phi_config_read(&config, settings, &fuzz_context()->report) == 0) {
        print(&config);
        phi_config_fini(&config);
    }
    free(text);
    return 0;
}
