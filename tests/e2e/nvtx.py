# SPDX-License-Identifier: BSD-3-Clause
"""The ranges that a tool of NVTX sees of two ranks of peerhop-perf.  nvtx.py PEERHOP_PERF TOOL"""
import collections
import os
import subprocess
import sys
import tempfile


def lines_of(perf, tool, file):
    environment = dict(os.environ, TEST_NVTX_FILE=file)
    if tool:
        environment["NVTX_INJECTION64_PATH"] = tool
    subprocess.run([perf, "-k", "host", "-c", "send-latency", "-b", "1000", "-n", "20"], env=environment, check=True,
                   stdout=subprocess.DEVNULL, timeout=200)
    if not os.path.exists(file):
        return []
    with open(file, encoding="ascii") as lines:
        return [line.split() for line in lines]


def check(lines):
    open_ranges, names = collections.defaultdict(list), collections.defaultdict(set)
    for thread, what, name, payload in lines:
        if what == "begin":
            open_ranges[thread].append(name)
            names[name].add((thread.split(".")[0], payload))
        else:
            assert open_ranges[thread], thread + ": a range ends that has not begun"
            open_ranges[thread].pop()
    assert not any(open_ranges.values()), open_ranges
    for name in ("ph_context_create", "ph_exchange", "ph_send", "ph_recv", "ph_complete", "ph_queue_synchronize", "ph_context_destroy"):
        assert len({process for process, _ in names[name]}) == 2, "%s: not of both ranks: %s" % (name, names[name])
    assert "1000" in {payload for _, payload in names["ph_send"]}, names["ph_send"]


with tempfile.TemporaryDirectory() as folder:
    check(lines_of(sys.argv[1], sys.argv[2], os.path.join(folder, "ranges")))
    assert lines_of(sys.argv[1], None, os.path.join(folder, "none")) == []
