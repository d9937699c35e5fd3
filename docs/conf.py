# SPDX-License-Identifier: Apache-2.0
"""The site that `make docs` builds with Sphinx: the Markdown pages of this folder, and the API
reference.

The pages are plain Markdown, so that they read well without the site, too. What Sphinx needs beyond
that is here: the navigation, and how the docstrings, which are Google's style in Markdown, become
reStructuredText.
"""

import os
import re

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import fednar_tff

# Without a worker of TFF's, which importing it would leave to the end of this process.
fednar_tff.runtime.set_in_process_context()

project = 'fednar_tff'
author = 'The fednar_tff developers'
release = fednar_tff.__version__
html_title = f'fednar_tff {release}'

# A page that is not named here is found by a test.
NAVIGATION = {
  'Use it': ('recipes', 'algorithms', 'add_a_task', 'runtimes', 'performance'),
  'The paper': ('Paper and code <paper>', 'The study <study>', 'Full size <full_size>'),
  'The house': ('design', 'verification', 'contributing'),
  'API reference': (
    'api/index',
    'api/optimizers',
    'api/algorithms',
    'api/tasks',
    'api/runtime',
    'api/simulation',
  ),
}

extensions = ['myst_parser', 'sphinx.ext.autodoc', 'sphinx.ext.napoleon']
myst_heading_anchors = 4  # Links to headings are those of the hosts that show Markdown.
html_theme = 'furo'
html_static_path = ['_static']
html_css_files = ['site.css']
html_show_copyright = False
html_show_sourcelink = False
default_role = 'code'
add_module_names = False
autodoc_member_order = 'bysource'
autodoc_default_options = {'members': True, 'show-inheritance': False}
autodoc_typehints = 'signature'
autodoc_typehints_format = 'short'
napoleon_use_ivar = True
python_maximum_signature_line_length = 90


def _add_navigation(app, page, source):
  if page == 'index':
    for caption, pages in NAVIGATION.items():
      entries = '\n'.join(pages)
      source[0] += f'\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n'


def _translate_docstring(app, what, name, obj, options, lines):
  """Fenced blocks become literal ones, and items of a list that go on in the next line stay
  items."""
  text = '\n'.join(lines)
  text = re.sub(r'^( *)```\w*\n(.*?)^\1```$', _literal_block, text, flags=re.MULTILINE | re.DOTALL)
  lines[:] = text.splitlines()


def _literal_block(match):
  indent, body = match.groups()
  body = '\n'.join(f'  {line}' if line.strip() else line for line in body.splitlines())
  return f'{indent}.. code-block:: text\n\n{body}\n'


def setup(app):
  app.connect('source-read', _add_navigation)
  # Before napoleon, which has the default priority.
  app.connect('autodoc-process-docstring', _translate_docstring, priority=100)
