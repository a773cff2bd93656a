#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Prints the version that include/peerhop/version.h (the first argument) defines.
exec awk '/#define PH_VERSION_(MAJOR|MINOR|PATCH) / { v = v sep $3; sep = "." } END { print v }' "$1"
