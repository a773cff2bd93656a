#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Types docs/nodes.md, word for word, into two network namespaces that a cable joins: nodes.py SOURCE TOOLS MOVE

TOOLS: the folder of peerhop-info; MOVE: the program of the quick start. Ends with 77 where there can be no namespaces.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77
SECONDS = 40
BLOCK = re.compile(r'^```sh\n# (?P<where>[^\n]*)\n(?P<words>.*?)^```$', re.M | re.S)
SAID = '1048576 numbers have come, on host\n'


def can_part():
    """None, or why there are no namespaces here."""
    for program in ('unshare', 'nsenter', 'ip', 'redis-server'):
        if not shutil.which(program):
            return f'no {program} here'
    done = subprocess.run(['unshare', '--net', '--pid', '--fork', '--kill-child', 'ip', 'link', 'show', 'lo'], capture_output=True, check=False)
    return None if done.returncode == 0 else 'no namespaces here: they need root'


class Node:
    """A network and a PID namespace: what was started in it, daemons included, ends with it, and that with this process."""

    def __init__(self, number, home, tools):
        self.number, self.home, self.tools = number, home, tools
        # It also ends by itself, should this process be killed.
        self.holder = subprocess.Popen(
            ['unshare', '--net', '--pid', '--fork', '--kill-child', '--mount-proc', 'sh', '-c', f'echo; exec sleep {3 * SECONDS}'],
            stdout=subprocess.PIPE)
        self.holder.stdout.readline()
        children = pathlib.Path(f'/proc/{self.holder.pid}/task/{self.holder.pid}/children').read_text().split()
        self.first = children[0]

    def enter(self, *spaces):
        return ['nsenter', '--target', self.first, *spaces]

    def root(self, *command):
        subprocess.run([*self.enter('--net'), *command], check=True)

    def type(self, words):
        """A shell that reads these words, as they stand in the page."""
        bare = {name: text for name, text in os.environ.items() if not name.startswith('PEERHOP_')}
        env = {**bare, 'HOME': str(self.home), 'PATH': f'{self.tools}:{os.environ["PATH"]}'}
        return subprocess.Popen([*self.enter('--net', '--pid', '--mount'), 'bash', '-e', '-c', f'cd {self.home}\n{words}'], env=env, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)

    def end(self):
        self.holder.kill()
        self.holder.wait()
        self.holder.stdout.close()


def join(nodes):
    nodes[0].root('ip', 'link', 'add', 'cable1', 'type', 'veth', 'peer', 'name', 'cable2', 'netns', nodes[1].first)
    for node in nodes:
        cable = f'cable{node.number}'
        node.root('ip', 'link', 'set', 'lo', 'up')
        node.root('ip', 'addr', 'add', f'192.0.2.{node.number}/24', 'dev', cable)
        node.root('ip', 'link', 'set', cable, 'up')


def words_of(page, node):
    """What is to be typed on a node: before there is a store to meet at, to meet, and behind that."""
    parts, part = ['', '', ''], 0
    for block in BLOCK.finditer(page):
        where = block['where'].split(' and ')
        part = max(part, 1 if len(where) > 1 else 2 if 'kill' in block['words'] else 0)
        if f'node {node}' in where:
            parts[part] += block['words']
    return parts


def finish(shell):
    """Two namespaces are of one machine, and ranks warn that ipc does not join them: real nodes say no such thing."""
    output, _ = shell.communicate(timeout=SECONDS)
    lines = output.splitlines(keepends=True)
    return shell.returncode, ''.join(line for line in lines if 'by its record on this node, is reached over the net' not in line)


def try_page(page, nodes):
    begin, meet, end = words_of(page, 'A')
    nothing, meet_too, nothing_either = words_of(page, 'B')
    if './move' not in meet or './move' not in meet_too or not begin or not end or nothing or nothing_either:
        sys.exit('docs/nodes.md has another shape than this test knows')
    status, output = finish(nodes[0].type(begin))
    if status != 0:
        sys.exit(f'the store did not start as the page says: {output}')
    ends = [finish(shell) for shell in [nodes[0].type(meet), nodes[1].type(meet_too)]]
    if ends != [(0, ''), (0, SAID)]:
        sys.exit(f'the ranks have not met as the page says: {ends}')
    status, output = finish(nodes[0].type(end))
    if status != 0 or output:
        sys.exit(f'the store did not end as the page says: {output}')


def main():
    source, tools, move = (pathlib.Path(word).resolve() for word in sys.argv[1:])
    why = can_part()
    if why:
        print(why)
        sys.exit(SKIPPED)
    with tempfile.TemporaryDirectory() as folder:
        home = pathlib.Path(folder)
        (home / 'move').symlink_to(move)
        nodes = []
        try:
            nodes = [Node(number, home, tools) for number in (1, 2)]
            join(nodes)
            try_page((source / 'docs' / 'nodes.md').read_text(), nodes)
        finally:
            for node in nodes:
                node.end()


if __name__ == '__main__':
    main()
