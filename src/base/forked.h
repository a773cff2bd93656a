// SPDX-License-Identifier: BSD-3-Clause
// Some sockets tell peers by their end that this process has ended. A forked child has copies of
// them. Until it executes a program it would hold them open after its parent was killed.
#ifndef PHI_BASE_FORKED_H
#define PHI_BASE_FORKED_H

// phi_forked_close has forked children close their copy of this socket. A later socket of the same
// descriptor is not closed, so nobody need say that a socket is closed. Without memory the children
// keep their copies.
void phi_forked_close(int fd);

#endif
