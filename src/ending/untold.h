// SPDX-License-Identifier: BSD-3-Clause
// Ends that the application does not know of: those of pairs whose peers live, and that of this
// rank. Such an end may hold streams: ours until a peer's application knows, and a peer's until
// ours does. So a call that waits for streams tells the application. Otherwise two applications
// that wait for each other would wait for ever.
#ifndef PHI_ENDING_UNTOLD_H
#define PHI_ENDING_UNTOLD_H

struct phi_self;

// phi_untold_note (with the lock) notes in self->end.untold whether a call that waits is to tell at
// once: this rank is fenced, or streams of ours are held.
void phi_untold_note(struct phi_self *self);

// phi_untold_answer (without the lock) returns the result of such a call whose wait has ended with
// rc. -EINTR means that there was something to tell at once. The result is the code of that, with
// its sentence; or -EINTR, where another call has told meanwhile, and the wait goes on. For
// -ETIMEDOUT the result is the code of any end that the application does not know, or -ETIMEDOUT.
// It does not matter there which rank waits for which, so that no call times out again and again
// where telling would help. Any other rc is the result itself.
int phi_untold_answer(struct phi_self *self, int rc);

// phi_untold_none (with the lock): the application is told of all ends so far, by whatever call.
void phi_untold_none(struct phi_self *self);

#endif
