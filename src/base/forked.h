// SPDX-License-Identifier: BSD-3-Clause
// Sockets that tell peers that this process lives. A child that is forked, and executes nothing,
// has copies of them: it would hold them open when its parent is killed.
#ifndef PHI_BASE_FORKED_H
#define PHI_BASE_FORKED_H

// phi_forked_close has forked children close their copy of this socket, for as long as it is this
// one: whoever closes it need not say so. Out of memory they keep it.
void phi_forked_close(int fd);

#endif
