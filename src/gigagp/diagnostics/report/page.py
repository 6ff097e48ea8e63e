"""One self-contained HTML page of texts, tables and pictures, which loads nothing from elsewhere."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gigagp.storage.figures import new_figure, style

#: Size of a picture in inches: on a phone, where it is as wide as the screen, its letters can still be read.
WIDTH, HEIGHT = 5.2, 4.2
#: Resolution of points and maps within a picture.
_DPI = 160
#: Space above and below a picture, in inches.
_MARGIN = 0.08

_CSS = """
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
"""


def escaped(text: str) -> str:
    """Return a text for HTML, with a question mark for each character that cannot be printed."""
    return html.escape("".join(c if c.isprintable() or c == "\n" else "?" for c in text))


@dataclass(frozen=True)
class Picture:
    """A picture as SVG, with what it shows in words."""

    svg: bytes
    alt: str
    caption: str


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


@dataclass
class Page:
    """A page in the making: parts of HTML, in which all texts have been escaped."""

    title: str
    parts: list[str] = field(default_factory=list)

    def heading(self, text: str) -> None:
        """Add a heading."""
        self.parts.append(f"<h2>{escaped(text)}</h2>")

    def text(self, *sentences: str) -> None:
        """Add a paragraph."""
        if sentences:
            self.parts.append(f"<p>{escaped(' '.join(sentences))}</p>")

    def box(self, kind: str, lines: Sequence[str]) -> None:
        """Add a list that stands out."""
        items = "".join(f"<li>{escaped(line)}</li>" for line in lines)
        self.parts.append(f'<div class="{kind}"><ul>{items}</ul></div>')

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> None:
        """Add a table; some of its columns are numbers."""

        def cells(row: Sequence[str], tag: str) -> str:
            mark = [' class="number"' if k in numbers else "" for k in range(len(row))]
            return "".join(f"<{tag}{mark[k]}>{escaped(cell)}</{tag}>" for k, cell in enumerate(row))

        body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
        top = f"<thead><tr>{cells(head, 'th')}</tr></thead>" if any(head) else ""
        self.parts.append(f'<div class="table"><table>{top}<tbody>{body}</tbody></table></div>')

    def pictures(self, found: Sequence[Picture]) -> None:
        """Add pictures, side by side where there is room."""
        self.parts.append('<div class="pictures">')
        for one in found:
            data = base64.b64encode(one.svg).decode()
            self.parts.append(
                f'<figure><img alt="{escaped(one.alt)}" src="data:image/svg+xml;base64,{data}">'
                f"<figcaption>{escaped(one.caption)}</figcaption></figure>"
            )
        self.parts.append("</div>")

    def html(self, lead: str, footer: str) -> str:
        """Return the page."""
        title = escaped(self.title)
        # The policy forbids scripts and requests, whatever the texts of a model contain.
        policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
        return (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f'<link rel="icon" href="data:,">\n<title>{title}</title>\n<style>{_CSS}</style></head>\n<body>\n'
            f'<header><h1>{title}</h1><p class="lead">{escaped(lead)}</p></header>\n<main>\n'
            + "\n".join(self.parts)
            + f"\n</main>\n<footer>{escaped(footer)}</footer>\n</body></html>\n"
        )
