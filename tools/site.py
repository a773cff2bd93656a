# SPDX-License-Identifier: BSD-3-Clause
"""A hook of mkdocs (mkdocs.yml): the site has pages that do not lie in docs/.

- The API's reference, a page for each public header, as packaging/reference makes it of their comments.
- The READMEs of folders. Links to them lead to these pages; those to files that are no pages become text.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parent.parent
READMES = {'tests.md': 'tests/README.md', 'python.md': 'python/README.md'}  # page of the site: file
LINK = re.compile(r'(!?)\[([^\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)')
folder = tempfile.TemporaryDirectory()  # until mkdocs ends


def on_files(files, config):
    root = pathlib.Path(folder.name)
    (root / 'api').mkdir(exist_ok=True)
    headers = [path for path in sorted((ROOT / 'include' / 'peerhop').iterdir()) if path.suffix in ('.h', '.cuh')]
    # Its version and date are for man pages.
    subprocess.run([sys.executable, ROOT / 'packaging' / 'reference' / 'reference.py', 'make', 'markdown', root / 'api', '', ROOT / 'NEWS.md',
                    *headers], check=True)
    for name, path in READMES.items():
        (root / name).write_text((ROOT / path).read_text())
    for path in sorted(root.rglob('*.md')):
        files.append(File(str(path.relative_to(root)), folder.name, config['site_dir'], config['use_directory_urls']))
    return files


def on_page_markdown(text, page, **_):
    here = page.file.src_uri
    source = pathlib.PurePosixPath(READMES.get(here, f'docs/{here}'))
    pages = {path: name for name, path in READMES.items()}

    def of_site(link):
        mark, words, path, place = link.groups()
        target = os.path.normpath(source.parent / path)
        if target.startswith('docs/'):
            name = target.removeprefix('docs/')
        elif target in pages:
            name = pages[target]
        elif (ROOT / target).exists():
            return words
        else:
            return link.group()  # mkdocs says that it leads nowhere
        return f'{mark}[{words}]({os.path.relpath(name, pathlib.PurePosixPath(here).parent)}{place or ""})'

    return text if here.startswith('api/') else LINK.sub(of_site, text)
