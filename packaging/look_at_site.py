"""Open pages in a headless Chromium, at the widths of a phone, a tablet and a desktop, and photograph some of them.

    sphinx-build -W docs build/site
    python packaging/render_pages.py build/pages
    python packaging/look_at_site.py build/site build/pages --screenshots build/screenshots

All pages below the folders are opened. A page fails if it is wider than the window, shows a broken image, asks another
host for anything, or writes an error to the console. Without a browser, one line says so and nothing fails.
"""

from __future__ import annotations

import argparse
import base64
import json
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

WIDTHS = (380, 768, 1440)
#: The pages that are photographed. Those of one page alone are named in full.
PHOTOGRAPHED = (
    "index.html",
    "tutorials/first-fit.html",
    "tutorials/map-with-holes.html",
    "how-to-choose.html",
    "kernels.html",
    "questions.html",
    "coming-from/scikit-learn.html",
    "examples/index.html",
    "pictures.html",
    "reliability.html",
    "README.html",
    "report.html",
    "estimator.html",
)
#: The browser, or None.
PROGRAM = next((one for name in ("chromium", "chromium-browser", "google-chrome") if (one := shutil.which(name))), None)
#: What the theme now and then writes to the console about a page that is opened for the first time.
_HARMLESS = "Got invalid theme mode"
#: Seconds that the browser may take for one answer.
_PATIENCE = 60
#: The largest height of a photograph, in pixels.
_HEIGHT = 6000
_FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --remote-debugging-pipe"
)
#: What is wrong with a page at its width. Pictures that load late are loaded now.
_LOOK = """(async () => {
  const pictures = [...document.images];
  pictures.forEach(one => one.loading = 'eager');
  await Promise.all(pictures.map(one => one.decode().catch(() => {})));
  const asked = performance.getEntriesByType('resource').map(one => one.name);
  return {
    'wider than the window by': Math.max(0, document.documentElement.scrollWidth - WIDTH),
    'broken pictures': pictures.filter(one => !one.naturalWidth).map(one => one.src),
    'asks for': asked.filter(one => !/^(file|data|blob):/.test(one)),
    'is empty': document.body.innerText.length < 50,
  };
})()"""


class Browser:
    """A page of a headless Chromium, by the DevTools protocol over a pipe.

    The protocol is at https://chromedevtools.github.io/devtools-protocol/. Messages are JSON and end with a zero byte.
    """

    def __init__(self, profile: str) -> None:
        self._ours, theirs = socket.socketpair()
        self._ours.settimeout(_PATIENCE)
        end = theirs.fileno()
        start = f'exec "$0" "$@" 3<&{end} 4>&{end}'  # the browser reads from 3 and writes to 4
        self._process = subprocess.Popen(
            ["bash", "-c", start, str(PROGRAM), *_FLAGS.split(), f"--user-data-dir={profile}"],
            pass_fds=[end],
            stderr=subprocess.DEVNULL,
        )
        theirs.close()
        self._count = 0
        self._rest = b""
        self._session: dict[str, str] = {}
        self.errors: list[str] = []
        self._loaded = False
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Call a method of the browser and return its answer."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": arguments, **self._session}
        self._ours.sendall(json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._count:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        found: dict[str, Any] = answer["result"]
        return found

    def open(self, page: Path) -> None:
        """Open a page and wait until it is loaded."""
        self._loaded = False
        self.errors.clear()
        self.ask("Page.navigate", url=page.as_uri())
        while not self._loaded:
            self._next()

    def resize(self, width: int, height: int = 900) -> None:
        """Give the window a width, which may be that of a phone."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def colours(self, scheme: str) -> None:
        """Have the window ask for light or dark pages."""
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def evaluate(self, script: str) -> Any:
        """Return the value of a script in the page."""
        answer = self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        return answer["result"]["value"]

    def photograph(self, path: Path) -> None:
        """Write the page from its top, as wide as the window."""
        size = self.ask("Page.getLayoutMetrics")
        width, height = size["cssLayoutViewport"]["clientWidth"], min(_HEIGHT, size["cssContentSize"]["height"])
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        found = self.ask("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(found["data"]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ours.close()
        self._process.terminate()
        self._process.wait()

    def _next(self) -> dict[str, Any]:
        """Return the next message, and note errors and that the page is loaded."""
        while b"\0" not in self._rest:
            received = self._ours.recv(1 << 20)
            if not received:
                raise RuntimeError("the browser has ended")
            self._rest += received
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        told = message.get("params", {})
        match message.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Log.entryAdded" if told["entry"]["level"] == "error":
                self.errors.append(told["entry"]["text"])
            case "Runtime.consoleAPICalled" if told["type"] in ("error", "assert"):
                self.errors.append(" ".join(str(one.get("value")) for one in told["args"]))
            case "Runtime.exceptionThrown":
                self.errors.append(told["exceptionDetails"]["text"])
        return message


def look(folders: Sequence[Path], screenshots: Path | None = None) -> list[str]:
    """Return what is wrong with the pages below folders at each width; write pictures of some of them to a folder."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, Browser(profile) as browser:
        pages = [
            (path, path.relative_to(folder).as_posix())
            for folder in folders
            for path in folder.rglob("*.html")
            if "_static" not in path.relative_to(folder).parts  # the theme's own parts of pages
        ]
        wrong = [text for path, name in sorted(pages) for text in _faults(browser, path, name, screenshots)]
    if screenshots is not None:
        wrong += [f"{name} is not there" for name in sorted(set(PHOTOGRAPHED) - {name for _, name in pages})]
    return wrong


def _faults(browser: Browser, path: Path, name: str, screenshots: Path | None) -> list[str]:
    """Return what is wrong with a page."""
    wrong = []
    browser.resize(WIDTHS[-1])
    browser.open(path)
    for width in WIDTHS:
        browser.resize(width)
        found = browser.evaluate(_LOOK.replace("WIDTH", str(width)))
        wrong += [f"{name} at {width} px: {what} {value}" for what, value in found.items() if value]
        if screenshots is None or name not in PHOTOGRAPHED:
            continue
        for scheme in ("light", "dark"):
            browser.colours(scheme)
            file = f"{name.removesuffix('.html').replace('/', '-')}-{width}-{scheme}.png"
            browser.photograph(screenshots / file)
        browser.colours("light")
    return wrong + [f"{name}: {text}" for text in browser.errors if not text.startswith(_HARMLESS)]


def main() -> int:
    """Return 1 if a page has a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--screenshots", type=Path, default=None)
    arguments = parser.parse_args()
    if PROGRAM is None:
        print("No Chromium or Chrome on this machine: pages are not looked at.")
        return 0
    if arguments.screenshots is not None:
        arguments.screenshots.mkdir(parents=True, exist_ok=True)
    wrong = look([folder.resolve() for folder in arguments.folders], arguments.screenshots)
    print(*wrong, f"{len(wrong)} faults of pages at {len(WIDTHS)} widths.", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
