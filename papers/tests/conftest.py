"""The fixtures of the library's tests, and its helpers, which lie in ``tests`` (``pythonpath`` in pyproject.toml)."""

from __future__ import annotations

from shared_fixtures import Answer as Answer
from shared_fixtures import call as call
from shared_fixtures import dataset as dataset
from shared_fixtures import forked_ranks_have_no_gpu as forked_ranks_have_no_gpu
from shared_fixtures import one_thread as one_thread
from shared_fixtures import trained as trained
