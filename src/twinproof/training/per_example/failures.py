"""Errors of torch while it maps over records, told as what the user's code did and where."""

from __future__ import annotations

import textwrap
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import torch

from twinproof.errors import ModelError

_TORCH = Path(torch.__file__).parent
_OWN = Path(__file__).parent


class NotMappable(ModelError):
    """The user's code uses an operation that cannot be mapped over records."""


@contextmanager
def naming_the_operation(subject: str) -> Iterator[None]:
    """Turns an error of torch inside the block into a NotMappable that names the operation; running out of memory passes."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, TypeError, NotImplementedError, IndexError) as error:
        raise NotMappable(
            f"{subject} cannot be computed record by record",
            where=_user_line(error.__traceback__),
            got=first_line(error),
            wanted="operations on tensors that torch.func.vmap can map over records",
            fix="replace the operation: no .item(), no Python branch on a tensor's value, no writing into fixed tensors",
        ) from error


def first_line(error: Exception) -> str:
    """The start of an error's message: torch explains at length."""
    return textwrap.shorten(str(error).strip().partition("\n")[0], 240, placeholder=" ...")


def _user_line(trace: TracebackType | None) -> str:
    """File, line and text of the innermost frame that is neither torch's nor ours."""
    frames = [frame for frame in traceback.extract_tb(trace) if not _is_library(Path(frame.filename))]
    if not frames:
        return "the network"
    frame = frames[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}, in {frame.name}: {frame.line}"


def _is_library(file: Path) -> bool:
    return file.is_relative_to(_TORCH) or file.is_relative_to(_OWN) or file.name == "contextlib.py"
