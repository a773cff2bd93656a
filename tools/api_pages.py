# SPDX-License-Identifier: BSD-3-Clause
"""A hook of mkdocs (mkdocs.yml): the API's reference, a page for each public header, of its declarations and their comments."""
import pathlib
import re
import tempfile

from mkdocs.structure.files import File

HEADERS = pathlib.Path(__file__).resolve().parent.parent / 'include' / 'peerhop'
PAGES = ('context', 'channel', 'transfer', 'memory', 'queue', 'release', 'store', 'error', 'log', 'version', 'device_types')
NOT_SHOWN = re.compile(r'#(ifn?def|if|endif|else|include)\b|#define PEERHOP_\w+_H$|extern "C" \{$|\}$')
NAME = re.compile(r'^(struct ph_\w+|enum ph_\w+)(?: \{|;)|\b(ph_\w+)\)?\(|^#define (PH_\w+)', re.M)
folder = tempfile.TemporaryDirectory()  # until mkdocs ends


def blocks(text):
    """Yields (comment, code) of what stands together; blank lines part, but not inside of braces."""
    comment, code = [], []
    for line in [*text.splitlines(), '']:
        depth = sum(part.count('{') - part.count('}') for part in code)
        if depth == 0 and not line.strip():
            if comment or code:
                yield comment, code
            comment, code = [], []
        elif depth == 0 and not code and line.startswith('//'):
            comment.append(line[2:].removeprefix(' '))
        elif code or not NOT_SHOWN.match(line):
            code.append(line)


def prose(comment):
    """Of a comment, Markdown."""
    lines = []
    for line in comment:
        if line.startswith('- ') and lines and not lines[-1].startswith(('- ', '  ')):
            lines.append('')
        lines.append(re.sub(r'([*<\[])', r'\\\1', line))
    return '\n'.join(lines)


def page(name):
    text = (HEADERS / f'{name}.h').read_text().partition('\n')[2]  # without the licence
    parts = [f'# {name}.h\n']
    for comment, code in blocks(text):
        names = list(dict.fromkeys(next(filter(None, found)) for found in NAME.findall('\n'.join(code))))
        if names:
            shown = names if code[0].startswith('PH_API') else names[:1]
            parts.append('## ' + ', '.join(shown))
        parts.append(prose(comment))
        if code:
            parts.append('```c\n' + '\n'.join(code) + '\n```')
    return '\n\n'.join(part for part in parts if part) + '\n'


def on_files(files, config):
    root = pathlib.Path(folder.name)
    (root / 'api').mkdir(exist_ok=True)
    for name in PAGES:
        (root / 'api' / f'{name}.md').write_text(page(name))
        files.append(File(f'api/{name}.md', folder.name, config['site_dir'], config['use_directory_urls']))
    return files
