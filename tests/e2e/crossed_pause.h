// SPDX-License-Identifier: BSD-3-Clause
// Threads of ranks that have no core for a while, at chosen points of an exchange.
#ifndef TESTS_E2E_CROSSED_PAUSE_H
#define TESTS_E2E_CROSSED_PAUSE_H

#ifdef __cplusplus
extern "C" {
#endif

// pause_in_wait: the next wait of an exchange is this call instead; it may come back at any time.
void pause_in_wait(void (*pause)(void));

// act_between_questions: this is called when the next answer to whom a rank waits for has come.
void act_between_questions(void (*act)(void));

// pause_before_roles: this is called before the next question about roles is sent.
void pause_before_roles(void (*pause)(void));

// hold_roles: the next question about roles is not sent, and its asker told that no answer has come
// in time; then this is called. send_held_roles sends it.
void hold_roles(void (*held)(void));
int send_held_roles(void);

#ifdef __cplusplus
}
#endif

#endif
