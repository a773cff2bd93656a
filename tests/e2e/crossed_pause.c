// SPDX-License-Identifier: BSD-3-Clause
#include "e2e/crossed_pause.h"

#include <errno.h>

#include "base/clock.h"
#include "peer/message.h"
#include "peer/node.h"
#include "peer/self.h"

static void (*paused)(void);
static void (*between)(void);
static void (*before_roles)(void);
static void (*when_held)(void);
static struct phi_peer *asked;
static struct phi_node_message question;

void pause_in_wait(void (*pause)(void))
{
    paused = pause;
}

void act_between_questions(void (*act)(void))
{
    between = act;
}

void pause_before_roles(void (*pause)(void))
{
    before_roles = pause;
}

void hold_roles(void (*held)(void))
{
    when_held = held;
}

int __real_phi_self_wait(struct phi_self *self, uint64_t seen, int64_t deadline);
int __wrap_phi_self_wait(struct phi_self *self, uint64_t seen, int64_t deadline);
int __wrap_phi_self_wait(struct phi_self *self, uint64_t seen, int64_t deadline)
{
    void (*pause)(void) = paused;
    paused = NULL;
    if (pause == NULL)
        return __real_phi_self_wait(self, seen, deadline);
    pthread_mutex_unlock(&self->lock);
    pause();
    pthread_mutex_lock(&self->lock);
    return 0;
}

int __real_phi_peer_call(struct phi_peer *peer, struct phi_node_message *request,
                         struct phi_node_message *answer, int *fd, int64_t deadline);
int __wrap_phi_peer_call(struct phi_peer *peer, struct phi_node_message *request,
                         struct phi_node_message *answer, int *fd, int64_t deadline);
int __wrap_phi_peer_call(struct phi_peer *peer, struct phi_node_message *request,
                         struct phi_node_message *answer, int *fd, int64_t deadline)
{
    void (*pause)(void) = before_roles, (*held)(void) = when_held;
    if (request->type == PHI_NODE_ROLES && held != NULL) {
        when_held = NULL;
        asked = peer;
        question = *request;
        *fd = -1;
        held();
        return -ETIMEDOUT;
    }
    if (request->type == PHI_NODE_ROLES && pause != NULL) {
        before_roles = NULL;
        pause();
        deadline += 10000 * PHI_MS;
    }
    const int rc = __real_phi_peer_call(peer, request, answer, fd, deadline);
    void (*act)(void) = between;
    if (request->type == PHI_NODE_WAITING && act != NULL) {
        between = NULL;
        act();
    }
    return rc;
}

int send_held_roles(void)
{
    struct phi_node_message answer;
    int fd;
    return __real_phi_peer_call(asked, &question, &answer, &fd, phi_deadline(10000));
}
