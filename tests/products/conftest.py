"""One process with Triton's interpreter serves all tests of a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engines import Interpreted


@pytest.fixture(autouse=True, scope="session")
def _interpreter() -> Iterator[None]:
    yield
    Interpreted.stop()
