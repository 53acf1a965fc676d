"""A floor under how many tests really ran, so that a lost folder cannot pass for success, and the fixtures that all share."""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest

from shared_fixtures import Answer as Answer
from shared_fixtures import call as call
from shared_fixtures import dataset as dataset
from shared_fixtures import forked_ranks_have_no_gpu as forked_ranks_have_no_gpu
from shared_fixtures import one_thread as one_thread
from shared_fixtures import trained as trained


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--floor", type=int, default=0, help="fail unless at least this many tests passed")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays: the garbage collector need not look at it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_sessionfinish(session: pytest.Session) -> None:
    floor: int = session.config.getoption("--floor")
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not floor or reporter is None or session.exitstatus != pytest.ExitCode.OK:
        return
    passed = len(reporter.stats.get("passed", []))
    if passed < floor:
        reporter.write_line(f"only {passed} tests passed, at least {floor} must: were tests lost or skipped?", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
