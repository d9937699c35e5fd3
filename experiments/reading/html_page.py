# SPDX-License-Identifier: Apache-2.0
"""A report as one page of HTML that loads nothing: tables, figures, settings and runs."""

import dataclasses
import html
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.reading import grouping, tables

_STYLE = """
:root { color-scheme: light dark; --text: #1d2228; --back: #ffffff; --soft: #5d6670;
  --line: #d8dde2; --stripe: #f5f7f9; }
@media (prefers-color-scheme: dark) {
  :root { --text: #dfe4e9; --back: #14181c; --soft: #97a1ab; --line: #343b43; --stripe: #1b2026; }
}
body { margin: 0 auto; max-width: 1060px; padding: 1.5rem;
  background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.5rem; }
h2 { font-size: 1.15rem; margin-top: 2.5rem; border-top: 2px solid var(--line); padding-top: 1rem; }
h3 { font-size: 1rem; margin: 1.8rem 0 .5rem; }
p.note { color: var(--soft); margin: .2rem 0; font-size: .9rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; text-align: left; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; } tbody tr:nth-child(even) { background: var(--stripe); }
figure { margin: 1rem 0; }
svg { max-width: 100%; height: auto; color: var(--text); fill: currentColor; }
svg text { font-family: system-ui, "DejaVu Sans", sans-serif; }
details { margin-top: 1rem; } summary { cursor: pointer; font-weight: 600; }
"""
_CAPTIONS = {
  'curves': 'Accuracy by round',
  'weight_decay': 'Accuracy against weight decay',
  'robustness': 'Accuracy at several weight decays',
  'clipping': 'Frequency and strength of clipping',
  'partition': 'Who holds what',
}


@dataclasses.dataclass(frozen=True)
class Section:
  """What a page says of one experiment.

  Attributes:
    table: Its results.
    figures: Its drawings, elements of SVG, by the name of the figure.
    settings: The settings that all runs share.
    runs: The list of its runs.
  """

  table: tables.Table
  figures: Mapping[str, Sequence[str]]
  settings: Mapping[str, Any]
  runs: tables.Table


def make(sections: Sequence[Section]) -> str:
  """Returns the page."""
  parts = [
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>Report</title>',
    '<meta name="viewport" content="width=device-width, initial-scale=1">',
    f'<style>{_STYLE}</style>\n</head>\n<body>\n<h1>Report</h1>',
  ]
  for section in sections:
    parts += _section(section)
  return '\n'.join([*parts, '</body>\n</html>\n'])


def _section(section):
  parts = [f'<h2>{html.escape(section.table.title)}</h2>']
  parts += [f'<p class="note">{html.escape(note)}</p>' for note in section.table.notes]
  parts.append(_table(section.table))
  for name, drawings in section.figures.items():
    if drawings:
      parts.append(f'<h3>{_CAPTIONS[name]}</h3>')
      parts += [f'<figure>{drawing}</figure>' for drawing in drawings]
  rows = [[grouping.header(n), grouping.text(v)] for n, v in section.settings.items()]
  settings = tables.Table('', [], ['setting', 'value'], rows, 2)
  parts.append(f'<details><summary>Settings of all runs</summary>{_table(settings)}</details>')
  count = section.runs.title
  parts.append(
    f'<details open><summary>{html.escape(count)}</summary>{_table(section.runs)}</details>'
  )
  return parts


def _table(table):
  def row(cells, tag):
    return '<tr>' + ''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells) + '</tr>'

  body = '\n'.join(row(cells, 'td') for cells in table.rows)
  return (
    f'<div class="wide"><table><thead>{row(table.header, "th")}</thead>\n'
    f'<tbody>{body}</tbody></table></div>'
  )
