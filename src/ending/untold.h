// SPDX-License-Identifier: BSD-3-Clause
// Ends that the application does not know of: of pairs whose peers live, and of this rank. Streams
// may be held by them, ours until a peer's application knows and a peer's until ours does. So a
// call that waits for streams tells: else those who wait for each other would wait for ever.
#ifndef PHI_ENDING_UNTOLD_H
#define PHI_ENDING_UNTOLD_H

struct phi_self;

// phi_untold_note (with the lock) notes in self->end.untold whether a call that waits is to tell at
// once: this rank is fenced, or streams of ours are held.
void phi_untold_note(struct phi_self *self);

// phi_untold_answer (without the lock) is what such a call returns where its wait has ended with
// rc. -EINTR (there was something to tell at once): the code of that, with its sentence; or -EINTR,
// where another call has told meanwhile, and the wait goes on. -ETIMEDOUT: the code of any end of
// which the application does not know; who waits for whom is not looked at, so that no call times
// out again and again where telling would help; or -ETIMEDOUT. Else rc.
int phi_untold_answer(struct phi_self *self, int rc);

// phi_untold_none (with the lock): the application is told of all ends so far, by whatever call.
void phi_untold_none(struct phi_self *self);

#endif
