// SPDX-License-Identifier: BSD-3-Clause
// A process in front of the one that starts ranks, where that would have children of others.
#ifndef TOOLS_FRONT_H
#define TOOLS_FRONT_H

// front_part sees to it that all children of the process in which it returns are its own, and
// theirs: exec keeps the children of the program before, a subreaper and process 1 of a container
// get orphans. Where there are some it goes on in a child; what was called passes on what comes
// from the signalfd `signals`, whose signals are blocked, and ends with the child's status. Before
// there are threads. 0, -errno.
int front_part(int signals);

#endif
