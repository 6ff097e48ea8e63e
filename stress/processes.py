"""Child processes of a worker, forked while it has one thread, so that they start within milliseconds."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class Ending:
    """The result of a child process.

    Attributes
    ----------
    code : int
        Exit code, or minus the number of the signal.
    value : object
        Return value of its function, or None.
    error : BaseException or None
        Exception of its function, if it could be sent.
    text : str
        Traceback of that exception.
    messages : list
        Messages that it sent while running.
    """

    code: int
    value: Any
    error: BaseException | None
    text: str
    messages: list[Any]

    def reraise(self) -> None:
        """Raise the function's exception, with the line of the package that it came from."""
        if self.error is not None:
            found = re.findall(r'File "[^"]*/src/gigagp/([^"]+)", line (\d+), in (\S+)', self.text)
            if found:
                name, line, function = found[-1]
                self.error.stress_place = f"{name}:{line} ({function})"  # type: ignore[attr-defined]
            raise self.error


class Child:
    """A forked process that runs a function.

    Parameters
    ----------
    function : callable
        Receives a function that sends a message, and returns an object that can be pickled.
    """

    def __init__(self, function: Callable[[Callable[[Any], None]], Any]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reading)
            _serve(function, writing)
        os.close(writing)
        self._reading, self._data = reading, b""
        self._code: int | None = None

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal, if the child is still there."""
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait_for_message(self, limit: float) -> bool:
        """Wait until the child has sent something or has ended; return whether that was within the limit."""
        end = time.monotonic() + limit
        while not self._data:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._reading], [], [], left)[0]:
                return False
            data = os.read(self._reading, 2**16)
            if not data:
                return True
            self._data += data
        return True

    def join(self, limit: float) -> Ending:
        """Wait until the child ends.

        Raises
        ------
        TimeoutError
            If it does not end within the limit; it is then killed.
        """
        end = time.monotonic() + limit
        while True:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._reading], [], [], max(left, 0))[0]:
                self.kill()
                self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
                os.close(self._reading)
                raise TimeoutError(f"a child did not end within {limit:g} s")
            data = os.read(self._reading, 2**16)
            if not data:
                break
            self._data += data
        os.close(self._reading)
        self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._ending()

    def _ending(self) -> Ending:
        value, error, text, messages = None, None, "", []
        data = self._data
        while len(data) >= 8:
            size = int.from_bytes(data[:8], "little")
            if len(data) < 8 + size:
                break
            kind, content = pickle.loads(data[8 : 8 + size])
            data = data[8 + size :]
            if kind == "message":
                messages.append(content)
            elif kind == "value":
                value = content
            else:
                error, text = content
        assert self._code is not None
        return Ending(self._code, value, error, text, messages)


def _serve(function: Callable[[Callable[[Any], None]], Any], writing: int) -> None:
    """Run the function in the child and exit without the parent's clean-up."""

    def send(kind: str, content: Any) -> None:
        data = pickle.dumps((kind, content))
        os.write(writing, len(data).to_bytes(8, "little") + data)

    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        value = function(lambda message: send("message", message))
        send("value", value)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException as error:
        text = traceback.format_exc()
        try:
            send("error", (error, text))
        except Exception:
            send("error", (RuntimeError(repr(error)), text))
    finally:
        os._exit(code)
