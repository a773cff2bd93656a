// SPDX-License-Identifier: BSD-3-Clause
#include "transport/transport.h"

const char *phi_reason_text(unsigned reason)
{
    static const char *const text[PHI_REASON_COUNT] = {
#define PHI_REASON_TEXT(name, value, words) [value] = (words),
        PHI_REASON_MAP(PHI_REASON_TEXT)
#undef PHI_REASON_TEXT
    };
    return reason < PHI_REASON_COUNT ? text[reason] : "unknown reason";
}
