// SPDX-License-Identifier: BSD-3-Clause
#ifndef PHI_BASE_DESCRIPTORS_H
#define PHI_BASE_DESCRIPTORS_H

// phi_descriptors_lack returns -EMFILE or -ENFILE where this process cannot open n (up to 64) more
// descriptors now, else 0. Other libraries do not always say why they fail; this tells whether that
// was the reason.
int phi_descriptors_lack(unsigned n);

#endif
