"""One self-contained HTML page of texts, tables and pictures, which loads nothing from elsewhere."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from gigagp.storage.figures import new_figure, style

#: Size of a picture in inches: on a phone, where it is as wide as the screen, its letters can still be read.
WIDTH, HEIGHT = 5.2, 4.2
#: Resolution of points and maps within a picture.
_DPI = 160
#: Space above and below a picture, in inches.
_MARGIN = 0.08

#: The page. Its policy forbids scripts and requests, whatever the texts of a model contain.
_TEMPLATE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{{ title }}</title>
<style>
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1120px; padding: 1.2rem 1rem 3rem; color: #1c1c1c; background: #fff;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; padding-bottom: .2rem; border-bottom: 1px solid #d0d0d0; }
p { margin: .5rem 0; max-width: 46rem; overflow-wrap: anywhere; }
.lead { color: #555; }
ul { padding-left: 1.2rem; max-width: 46rem; }
li { margin: .35rem 0; overflow-wrap: anywhere; }
.careful { border-left: 4px solid #d55e00; background: #fdf3ec; padding: .5rem .9rem; max-width: 48rem; }
.careful ul { margin: .3rem 0; }
.fine { border-left: 4px solid #0072b2; background: #eef5fa; padding: .5rem .9rem; max-width: 48rem; }
.pictures { margin-top: 1rem; display: grid; gap: 1.2rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 440px), 1fr)); }
figure { margin: 0; break-inside: avoid; }
figure img { width: 100%; height: auto; display: block; }
figcaption { font-size: .88rem; color: #444; margin-top: .3rem; }
.table { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; }
th, td { text-align: left; padding: .28rem .8rem .28rem 0; border-bottom: 1px solid #e4e4e4; vertical-align: top;
  overflow-wrap: break-word; white-space: pre-line; }
td:nth-child(2):not(:last-child) { white-space: nowrap; }
th { font-weight: 600; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
th.number { text-align: right; }
footer { margin-top: 2.5rem; font-size: .85rem; color: #555; }
@media print { body { max-width: none; padding: 0; font-size: 11pt; }
  .pictures { grid-template-columns: 1fr 1fr; } h2 { break-after: avoid; } tr { break-inside: avoid; } }
</style></head>
<body>
{%- macro table(head, rows, numbers=()) %}
<div class="table"><table>
{%- if head %}<thead>{{ line("th", head, numbers) }}</thead>{% endif -%}
<tbody>{% for row in rows %}{{ line("td", row, numbers) }}{% endfor %}</tbody></table></div>
{%- endmacro %}
{%- macro line(tag, cells, numbers) -%}
<tr>{% for cell in cells %}<{{ tag }}{% if loop.index0 in numbers %} class="number"{% endif %}>{{ cell }}</{{ tag }}>
{%- endfor %}</tr>
{%- endmacro %}
{%- macro pictures(found) %}
<div class="pictures">{% for one in found %}
<figure><img alt="{{ one.alt }}" src="data:image/svg+xml;base64,{{ one.data }}">
<figcaption>{{ one.caption }}</figcaption></figure>{% endfor %}
</div>
{%- endmacro %}
<header><h1>{{ title }}</h1><p class="lead">{{ lead }}</p></header>
<main>
<h2>In words</h2>
<p>{{ fitted | join(" ") }}</p>
<p>{{ assessment.summary | join(" ") }}</p>
<h2>What to be careful about</h2>
{%- if assessment.cautions %}
<div class="careful"><ul>{% for one in assessment.cautions %}<li>{{ one }}</li>{% endfor %}</ul></div>
{%- else %}
<div class="fine"><ul><li>The checks of this report have found nothing. They cannot see everything.</li></ul></div>
{%- endif %}
<h2>How good it is</h2>
{{- table(("score", "value", "meaning"), assessment.scores) }}
{{- pictures(errors) }}
<h2>What the model has learned</h2>
{{- pictures(function) }}
{%- if learning %}
<h2>How it was learned</h2>
{{- pictures(learning) }}
{%- endif %}
<h2>Hyperparameters</h2>
{{- table(("name", "standardized", "own units"), hyperparameters, (1, 2)) }}
{%- if hidden %}
<p>Not shown: {{ hidden | join(", ") }}.</p>
{%- endif %}
<h2>What ran</h2>
{{- table((), facts) }}
{%- if columns %}
<h2>Columns</h2>
{{- table((), columns) }}
{%- endif %}
</main>
<footer>Made by gigagp {{ version }}. It needs no network.</footer>
</body></html>
"""


def _printable(value: object) -> object:
    """Return what is shown of a value: a question mark stands for each character that cannot be printed."""
    if isinstance(value, Markup):  # of a macro, whose texts have been escaped
        return value
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in str(value))


def page(**content: Any) -> str:
    """Return the page of a report, in which all texts are escaped."""
    environment = Environment(autoescape=True, finalize=_printable, undefined=StrictUndefined)
    return environment.from_string(_TEMPLATE).render(content) + "\n"


@dataclass(frozen=True)
class Picture:
    """A picture as SVG, with what it shows in words."""

    svg: bytes
    alt: str
    caption: str

    @property
    def data(self) -> str:
        """The picture as text, for a link."""
        return base64.b64encode(self.svg).decode()


def picture(draw: Callable[[Any], object], alt: str, caption: str, height: float = HEIGHT) -> Picture:
    """Return the picture that a function draws on axes."""
    from matplotlib.transforms import Bbox

    with style():
        figure = new_figure(WIDTH, height)
        draw(figure.add_subplot())
        file = io.BytesIO()
        figure.draw_without_rendering()  # places everything
        drawn = figure.get_tightbbox()  # without the empty strips above and below a flat map
        box = Bbox([[0.0, drawn.y0 - _MARGIN], [WIDTH, drawn.y1 + _MARGIN]])
        figure.savefig(file, format="svg", dpi=_DPI, metadata={"Date": None}, bbox_inches=box)
    return Picture(file.getvalue(), alt, caption)
