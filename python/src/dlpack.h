// SPDX-License-Identifier: BSD-3-Clause
// DLPack 0.x and 1.x: by the table of the object's type, or by its __dlpack__.
#ifndef PEERHOP_PYTHON_DLPACK_H
#define PEERHOP_PYTHON_DLPACK_H

#include "view.h"

// dlpack_take is view_take for an object that has one of them; 1: it has none.
int dlpack_take(const char *function, PyObject *object, bool writable, struct view *view);
void dlpack_drop(struct view *view);

// dlpack_stream: the CUDA stream on which the framework of that tensor works now; 1: no table says
// it.
int dlpack_stream(const struct view *view, void **stream);

#endif
