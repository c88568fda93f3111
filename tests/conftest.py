"""What several files of tests begin with."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each of LINES can be answered."""
    from tests.lines import write_files  # only here: it needs packages of which the tests of a device know nothing

    made = tmp_path_factory.mktemp("lines")
    write_files(made)
    return made
