# SPDX-License-Identifier: BSD-3-Clause
"""Reads metrics in Prometheus' text exposition format 0.0.4 as strictly as its description has it, and prints each sample as
NAME, its labels as name=value in the order of names, and its value, with tabs between them. What is wrong is an error with
its line.  exposition.py <FILE, or exposition.py --self-test"""
import re
import sys

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"')
SAMPLE = re.compile(r"(%s)(?:\{(.*)\})? ([^ ]+)$" % NAME)
ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


class Wrong(Exception):
    pass


def labels_of(text):
    labels, at = {}, 0
    while text is not None and at < len(text):
        match = LABEL.match(text, at)
        if not match:
            raise Wrong("no label: " + text[at:])
        if match[1] in labels:
            raise Wrong("label twice: " + match[1])
        labels[match[1]] = re.sub(r'\\[\\"n]', lambda escape: ESCAPES[escape[0]], match[2])
        at = match.end()
        if at < len(text) and text[at] != ",":
            raise Wrong("no comma: " + text[at:])
        at += 1
    return labels


class Reader:
    def __init__(self):
        self.helps, self.types = {}, {}
        self.over = set()  # metrics behind whose samples another's stand
        self.last = None
        self.series = {}

    def comment(self, line):
        match = re.match(r"# (HELP|TYPE) (%s) (.*)$" % NAME, line)
        if not match:
            raise Wrong("neither HELP nor TYPE")
        kind, name, text = match.groups()
        known = self.helps if kind == "HELP" else self.types
        if name in known:
            raise Wrong("second %s of %s" % (kind, name))
        if kind == "HELP" and re.search(r"\\(?![\\n])", text):
            raise Wrong("no escape in HELP")
        if kind == "TYPE" and (text not in ("counter", "gauge") or name == self.last):
            raise Wrong("TYPE %s of %s" % (text, name))
        if kind == "TYPE" and (text == "counter") != name.endswith("_total"):
            raise Wrong("a counter, and nothing else, ends with _total")
        known[name] = text

    def sample(self, line):
        match = SAMPLE.match(line)
        if not match:
            raise Wrong("no sample")
        name, value = match[1], float(match[3])
        if name not in self.types or name not in self.helps:
            raise Wrong("no HELP or TYPE of " + name)
        if name in self.over:
            raise Wrong("samples of %s in two places" % name)
        if self.last not in (None, name):
            self.over.add(self.last)
        self.last = name
        key = (name, tuple(sorted(labels_of(match[2]).items())))
        if key in self.series:
            raise Wrong("series twice")
        self.series[key] = value


def read(text):
    reader = Reader()
    if not text.endswith("\n"):
        raise Wrong("the last line has no end")
    for line in text[:-1].split("\n"):
        try:
            reader.comment(line) if line.startswith("#") else reader.sample(line)
        except (Wrong, ValueError) as error:
            raise Wrong("%s: %s" % (line, error)) from None
    return reader.series


def self_test():
    head = "# HELP a_total b\n# TYPE a_total counter\n"
    assert read(head + 'a_total{x="q\\"b\\\\n\\n",y=""} 1\n') == {("a_total", (("x", 'q"b\\n\n'), ("y", ""))): 1.0}
    wrong = ["a_total 1\n", head + "a_total 1", head + "a_total 1\na_total 1\n", head + "a_total one\n", head + "a_total{x=1} 1\n",
             head + 'a_total{x="a"b"} 1\n', head + 'a_total{x="a\\b"} 1\n', head + 'a_total{x="1",x="2"} 1\n', head + "\n", head + head,
             head.replace("counter", "gauge"), "# HELP a b\n# TYPE a counter\n", "# HELP a \\b\n", head + "a-total 1\n",
             head + "# HELP c d\n# TYPE c gauge\n" + 'a_total{x="1"} 1\nc 1\na_total{x="2"} 1\n']
    for text in wrong:
        try:
            read(text)
        except Wrong:
            continue
        sys.exit("taken: " + text)


def main():
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return
    try:
        series = read(sys.stdin.buffer.read().decode("utf-8"))
    except (Wrong, UnicodeDecodeError) as wrong:
        sys.exit(str(wrong))
    sys.stdout.reconfigure(encoding="utf-8")
    for (name, labels), value in series.items():
        print("\t".join([name] + ["%s=%s" % label for label in labels] + ["%.17g" % value]))


main()
