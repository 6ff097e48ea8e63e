"""Set before torch is imported: parallel test processes share the cores, so each takes one."""

from __future__ import annotations

import os
import signal

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts what it runs in the background with SIGINT ignored, and the processes that tests start inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
