"""A floor under the number of tests that really ran, so that a silent skip or a lost folder cannot pass for success."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--floor", type=int, default=0, help="fail unless at least this many tests passed")


def pytest_sessionfinish(session: pytest.Session) -> None:
    floor: int = session.config.getoption("--floor")
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not floor or reporter is None or session.exitstatus != pytest.ExitCode.OK:
        return
    passed = len(reporter.stats.get("passed", []))
    if passed < floor:
        reporter.write_line(f"only {passed} tests passed, at least {floor} must: were tests lost or skipped?", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
