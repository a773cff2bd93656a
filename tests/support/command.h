// SPDX-License-Identifier: BSD-3-Clause
#ifndef TESTS_SUPPORT_COMMAND_H
#define TESTS_SUPPORT_COMMAND_H

#include <cstdio>
#include <string>

#include <sys/wait.h>

// Runs a line of the shell and keeps what it prints, its errors too; its exit status, or 1000.
inline int run_command(const std::string &line, std::string *out)
{
    FILE *pipe = popen((line + " 2>&1").c_str(), "r");
    char buffer[4096];
    size_t n;
    out->clear();
    while (pipe && (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0)
        out->append(buffer, n);
    int status = pipe ? pclose(pipe) : -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000;
}

#endif
