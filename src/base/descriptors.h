// SPDX-License-Identifier: BSD-3-Clause
#ifndef PHI_BASE_DESCRIPTORS_H
#define PHI_BASE_DESCRIPTORS_H

// phi_descriptors_lack: -EMFILE or -ENFILE where this process cannot open n (up to 64) more
// descriptors now, else 0. For what fails in other libraries, which do not always say why.
int phi_descriptors_lack(unsigned n);

#endif
