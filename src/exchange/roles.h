// SPDX-License-Identifier: BSD-3-Clause
// Roles that do not match, told to both ranks while they wait: see docs/protocols.md, "Exchanges
// under way".
#ifndef PHI_EXCHANGE_ROLES_H
#define PHI_EXCHANGE_ROLES_H

#include <stddef.h>

struct ph_exchange_request;
struct phi_node_message;
struct phi_peer;
struct phi_pending;
struct phi_wrong;

// phi_roles_explain writes which ranks name which roles.
void phi_roles_explain(const struct phi_wrong *wrong, char *text, size_t size);

// phi_roles_ask (by the thread that waits for `pending`; with the lock, given up in between) asks
// the peer whether it waits with a role that does not match: then `wrong` of the exchanges says so
// at both ends.
void phi_roles_ask(struct ph_exchange_request *request, const struct phi_pending *pending);

// phi_roles_answer (with the lock) answers such a question.
int phi_roles_answer(struct phi_peer *peer, const struct phi_node_message *request,
                     struct phi_node_message *answer);

#endif
