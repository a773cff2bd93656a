#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Builds the pages as a site, and follows every link in it: site_links.py SOURCE

What leads to other hosts is not followed: a check of a program should not depend on them.
"""
import html.parser
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.parse

SKIPPED = 77


class Page(html.parser.HTMLParser):
    """The links and the names of places of one page."""

    def __init__(self, path):
        super().__init__()
        self.links, self.places = [], {''}
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ('href', 'src') and value:
                self.links.append(value)
            elif name == 'id':
                self.places.add(value)


def is_elsewhere(link):
    parts = urllib.parse.urlsplit(link)
    return bool(parts.scheme or parts.netloc)


def in_site(site):
    """Yields what is wrong with links of pages of the site."""
    pages = {path: Page(path) for path in site.rglob('*.html') if path.name != '404.html'}
    if len(pages) < 10:
        yield f'the site has {len(pages)} pages'
    for path, page in pages.items():
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            target = path if not parts.path else (path.parent / urllib.parse.unquote(parts.path)).resolve()
            if is_elsewhere(link):
                continue
            if not target.exists():
                yield f'{path.name}: {link} is not there'
            elif target in pages and urllib.parse.unquote(parts.fragment) not in pages[target].places:
                yield f'{path.name}: {link} has no such place'


def reference(source, site):
    """Yields what the API's pages lack: a header, or a function of the library."""
    said = {path.stem: path.read_text() for path in (site / 'api').glob('*.html')}
    for path in (source / 'include' / 'peerhop').glob('*.h'):
        if f'{path.stem}_h' not in said:
            yield f'no page of the site is about {path.name}'
    for name in re.findall(r'(ph_\w+);', (source / 'src' / 'api' / 'libpeerhop.map').read_text()):
        if not any(re.search(rf'<h2[^>]*>[^<]*\b{name}\b', text) for text in said.values()):
            yield f'no section of the site is about {name}'


def main():
    source, mkdocs = pathlib.Path(sys.argv[1]), shutil.which('mkdocs')
    if not mkdocs:
        print('no mkdocs here')
        sys.exit(SKIPPED)
    with tempfile.TemporaryDirectory() as folder:
        site = pathlib.Path(folder).resolve() / 'site'
        done = subprocess.run([mkdocs, 'build', '--strict', '--quiet', '--config-file', source / 'mkdocs.yml', '--site-dir', site],
                              capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f'mkdocs: status {done.returncode}\n{done.stdout}{done.stderr}')
        wrong = [*in_site(site), *reference(source, site)]
    if wrong:
        sys.exit('\n'.join(wrong))


if __name__ == '__main__':
    main()
