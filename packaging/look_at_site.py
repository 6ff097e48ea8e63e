"""Open every page of the built site in a headless browser, at the widths of a phone, a tablet and a desktop.

    sphinx-build -W docs build/site
    python packaging/look_at_site.py build/site --screenshots build/screenshots

A page fails if it is wider than the window, shows a broken image, asks another host for anything, or writes an error to
the console. One browser opens the pages one after the other in a frame; `--pages` says which to photograph.
"""

from __future__ import annotations

import argparse
import functools
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, Queue
from typing import Any

WIDTHS = (380, 768, 1440)
#: Seconds that all pages may take together.
_PATIENCE = 900
_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --enable-logging=stderr"
)
#: What the theme tells the console of its state; browsers log all lines of a console at the same level.
_REMARKS = ('"[PST]: ', '"Got invalid theme mode: . Resetting to auto."')
#: The page that opens all others.
_DRIVER = """<!doctype html><title>pages</title><body><script>
const pages = PAGES, widths = WIDTHS, found = [];
const frame = document.createElement('iframe');
document.body.append(frame);
function opened(page, width) {
  return new Promise(done => {
    frame.style.width = width + 'px';
    frame.style.height = '900px';
    frame.onload = () => setTimeout(() => {
      const inner = frame.contentWindow, text = frame.contentDocument;
      const asked = inner.performance.getEntriesByType('resource').map(one => one.name);
      done({
        page, width,
        excess: Math.max(0, text.documentElement.scrollWidth - inner.innerWidth),
        broken: [...text.images].filter(one => one.complete && !one.naturalWidth).map(one => one.src),
        elsewhere: asked.filter(one => !one.startsWith(location.origin) && !one.startsWith('data:')),
        empty: text.body.innerText.length < 50,
      });
    }, 150);
    frame.src = '/' + page;
  });
}
(async () => {
  for (const page of pages) for (const width of widths) found.push(await opened(page, width));
  await fetch('/found', {method: 'POST', body: JSON.stringify(found)});
})();
</script>"""


class Handler(SimpleHTTPRequestHandler):
    """Serve the site, the page that opens the others, and take what that page has found."""

    def __init__(self, *arguments: Any, pages: list[str], found: Queue[Any], **named: Any) -> None:
        self.pages, self.found = pages, found
        super().__init__(*arguments, **named)

    def do_GET(self) -> None:
        """Answer with a file, or the page that opens all others."""
        if self.path != "/driver":
            super().do_GET()
            return
        text = _DRIVER.replace("PAGES", json.dumps(self.pages)).replace("WIDTHS", json.dumps(WIDTHS)).encode()
        self._answer(text)

    def do_POST(self) -> None:
        """Take what was found."""
        self.found.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._answer(b"")

    def _answer(self, text: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


def check(browser: str, origin: str, found: Queue[Any]) -> list[str]:
    """Open all pages and return what is wrong with them."""
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, *_FLAGS.split(), "--window-size=1500,1000", f"--user-data-dir={profile}"]
        command += ["--remote-debugging-port=0", f"{origin}/driver"]  # with the port, the browser stays open
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            told: list[str] = []
            reader = threading.Thread(target=lambda: told.extend(process.stderr or []))
            reader.start()
            try:
                pages = found.get(timeout=_PATIENCE)
            except Empty:
                return [f"the browser has not opened all pages within {_PATIENCE} s", *told[-5:]]
            finally:
                process.terminate()
                process.wait()
                reader.join()
    wrong = [f"console: {line.strip()}" for line in told if "CONSOLE" in line and not any(map(line.count, _REMARKS))]
    for one in pages:
        for what in ("excess", "broken", "elsewhere", "empty"):
            if one[what]:
                wrong.append(f"{one['page']} at {one['width']} px: {what} {one[what]}")
    print(f"{len(pages) // len(WIDTHS)} pages at {len(WIDTHS)} widths, {len(wrong)} faults")
    return wrong


def photograph(browser: str, origin: str, pages: list[str], folder: Path) -> None:
    """Write screenshots of some pages at each width."""
    folder.mkdir(parents=True, exist_ok=True)
    for page in pages:
        for width in WIDTHS:
            path = folder / f"{page.removesuffix('.html').replace('/', '-')}-{width}.png"
            with tempfile.TemporaryDirectory() as profile:
                command = [browser, *_FLAGS.split(), f"--window-size={width},{2400 if width < 500 else 1600}"]
                command += [f"--user-data-dir={profile}", f"--screenshot={path}", f"{origin}/{page}"]
                subprocess.run(command, check=True, capture_output=True, timeout=120)


def main() -> int:
    """Return 1 if a page has a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path)
    parser.add_argument("--screenshots", type=Path, default=None)
    parser.add_argument("--pages", nargs="*", default=["index.html", "examples/index.html", "tutorials/first-fit.html"])
    arguments = parser.parse_args()
    browser = next((one for name in ("chromium", "google-chrome") if (one := shutil.which(name))), None)
    if browser is None:
        print("No Chromium or Chrome on this machine: pages are not looked at.")
        return 0
    site = arguments.site.resolve()
    pages = sorted(str(path.relative_to(site)) for path in site.rglob("*.html"))
    found: Queue[Any] = Queue()
    handler = functools.partial(Handler, directory=str(site), pages=pages, found=found)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        origin = f"http://127.0.0.1:{server.server_address[1]}"
        wrong = check(browser, origin, found)
        if arguments.screenshots is not None:
            photograph(browser, origin, arguments.pages, arguments.screenshots)
        server.shutdown()
    for one in wrong:
        print(one)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
