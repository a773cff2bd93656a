// SPDX-License-Identifier: BSD-3-Clause
// The URI of a Redis server, redis://[user:password@]host[:port][/db] or
// unix://[user:password@]/path[?db=N], or of a directory, file:/path, each part percent-encoded
// where it must be.
#ifndef PHI_STORE_URI_H
#define PHI_STORE_URI_H

#include "base/report.h"

struct phi_store_uri {
    char *host; // redis://, else NULL
    char port[6];
    char *path;      // unix://, else NULL
    char *directory; // file:, else NULL: nothing but address goes with it
    char *user;      // NULL: the server's default user
    char *password;  // NULL: none
    int db;
    char address[160]; // for messages: no user, no password
};

// phi_store_uri_parse: -EINVAL says which part is wrong. It quotes nothing, as anything in a
// mistyped URI may be the password. -ENOMEM. On failure nothing is owned.
int phi_store_uri_parse(struct phi_store_uri *uri, const char *text, struct phi_report *report);
void phi_store_uri_fini(struct phi_store_uri *uri); // and overwrites the password

// phi_store_uri_password takes another password instead. -ENOMEM.
int phi_store_uri_password(struct phi_store_uri *uri, const char *password,
                           struct phi_report *report);

// phi_store_uri_password_file takes the first line of a regular file. It must be this user's or
// root's, and nobody else may read or write it (-EACCES; root's group may read root's).
int phi_store_uri_password_file(struct phi_store_uri *uri, const char *file,
                                struct phi_report *report);

#endif
