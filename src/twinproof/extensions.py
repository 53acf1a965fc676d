"""Extension points: what other packages and scripts add to the library, and what they may claim.

| group | an entry point's name | what it loads |
| --- | --- | --- |
| ``twinproof.recipes`` | the recipe | a ``Recipe`` |
| ``twinproof.variants`` | ``recipe.variant`` | a ``Variant`` |
| ``twinproof.bounds`` | ``bound.law`` | a class derived from ``RobustnessBound`` |
| ``twinproof.attacks`` | the attack | a function that makes an ``Attack`` from its options |
| ``twinproof.layer_rules`` | ``module.Layer``, the layer's full name | a rule for the gradient of each record |
| ``twinproof.experiments`` | the table or figure | what ``reproduce`` makes (``twinproof-papers``) |
| ``twinproof.commands`` | the verb | a function for typer |

A package names them in its ``pyproject.toml``; a script registers the same objects with the decorators below::

    [project.entry-points."twinproof.recipes"]
    mine = "my_package.recipes:MINE"

    @twinproof.extensions.recipe("mine")
    def mine() -> Recipe: ...

Names are listed without loading anything. What is named is loaded; one that cannot be loaded costs a warning. The library's own
come first and cannot be replaced.

Guarantees
    Nothing that was registered from outside this package is ever called ``proven``. It is the way by which an object came that
    decides (the library's own tables, or this module), not what the object says about itself: ``permitted``.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from types import CodeType
from typing import Any, TypeVar

from twinproof.guarantee import Status

_Thing = TypeVar("_Thing")
PAPERS = "twinproof-papers"
PUBLISHED = "published"
"""The variant and the bound that a paper printed; in ``twinproof-papers``."""
_OF_PAPERS = (PUBLISHED, "reproduce")
_LIBRARY = str(Path(__file__).resolve().parent) + "/"


class Group(StrEnum):
    """The kinds of extensions; an entry point's group is ``twinproof.`` and the value."""

    RECIPES = "recipes"
    VARIANTS = "variants"
    BOUNDS = "bounds"
    ATTACKS = "attacks"
    LAYER_RULES = "layer_rules"
    EXPERIMENTS = "experiments"
    COMMANDS = "commands"


@dataclass(frozen=True)
class Plugin:
    """Where an extension comes from, as ``run.json`` names it. ``version`` is empty for a script."""

    kind: str
    name: str
    package: str
    version: str

    def as_dict(self) -> dict[str, str]:
        """The record as plain JSON values."""
        return asdict(self)

    @property
    def assumption(self) -> str:
        """What has to be assumed where a promise rests on it."""
        of = f"{self.package} {self.version}".strip()
        return (
            f"The {self.kind.replace('_', ' ')} {self.name!r} comes from {of}, which is not part of twinproof. "
            "That it keeps what the theorem asks of it is assumed."
        )


ASSUMED_REASON = "what was used from outside of twinproof was not proven by us: see the last assumptions"

_in_scripts: dict[Group, dict[str, tuple[Any, Plugin]]] = {group: {} for group in Group}


@cache
def _installed(group: Group) -> Mapping[str, metadata.EntryPoint]:
    """Entry points by name; of two with one name the first that Python finds."""
    found: dict[str, metadata.EntryPoint] = {}
    for point in metadata.entry_points(group=f"twinproof.{group}"):
        found.setdefault(point.name, point)
    return found


def names(group: Group) -> list[str]:
    """The names in this group; nothing is loaded."""
    return list(dict.fromkeys([*_installed(group), *_in_scripts[group]]))


@cache
def _loaded(point: metadata.EntryPoint) -> Any:
    try:
        found = point.load()
        return found() if point.group == f"twinproof.{Group.BOUNDS}" else found  # a class, of which one instance is enough
    except Exception as error:  # noqa: BLE001 (a package that is broken must not break the library)
        plugin = _named(point, point.group.removeprefix("twinproof."))
        warnings.warn(
            f"the {plugin.kind} {plugin.name!r} of {plugin.package} cannot be loaded: {type(error).__name__}: {error}",
            stacklevel=2,
        )
        return None


def find(group: Group, name: str, kind: type[_Thing] | None = None) -> Any:
    """The extension of that name, loaded; None where there is none, or where it is broken: not a ``kind``, if one is given."""
    if name in _in_scripts[group]:
        found = _in_scripts[group][name][0]
    else:
        found = _loaded(_installed(group)[name]) if name in _installed(group) else None
    if kind is None or found is None or isinstance(found, kind):
        return found
    warnings.warn(f"{group.value}: {name!r} is a {type(found).__name__} and not a {kind.__name__}", stacklevel=2)
    return None


def plugin_of(group: Group, name: str) -> Plugin | None:
    """Where the extension of that name comes from; None where there is none."""
    if name in _in_scripts[group]:
        return _in_scripts[group][name][1]
    point = _installed(group).get(name)
    return None if point is None else _named(point, group)


def _named(point: metadata.EntryPoint, group: str) -> Plugin:
    kind = group.removesuffix("s")
    return Plugin(kind, point.name, *(("", "") if point.dist is None else (point.dist.name, point.dist.version)))


def permitted(claimed: Status) -> Status:
    """The status that may be printed of outside code that claims one: ``assumed`` in place of ``proven``."""
    return Status.ASSUMED if claimed == Status.PROVEN else Status(claimed)


def is_library_code(code: CodeType) -> bool:
    """Whether a function's code lies in this package; what ``__module__`` says does not count."""
    return str(Path(code.co_filename).resolve()).startswith(_LIBRARY)


def plugin_of_code(group: Group, name: str, function: Callable[..., Any]) -> Plugin | None:
    """Where a registered function comes from; None for the library's own."""
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType) and is_library_code(code):
        return None
    return Plugin(group.removesuffix("s"), name, *_package(str(getattr(function, "__module__", ""))))


def _package(module: str) -> tuple[str, str]:
    top = module.partition(".")[0]
    for name in metadata.packages_distributions().get(top, ()):
        return name, metadata.version(name)
    return top, ""


def where_to_get(name: str) -> str | None:
    """What to do about a missing name that another distribution of this project has; None for any other name."""
    return f"pip install {PAPERS}" if name in _OF_PAPERS and not _has_papers() else None


def _has_papers() -> bool:
    return any(point.dist is not None and point.dist.name == PAPERS for point in _installed(Group.COMMANDS).values())


def _decorator(group: Group, *, record: bool) -> Callable[[str], Callable[[_Thing], _Thing]]:
    """``record``: what is decorated makes the thing (a function without arguments, a class), and is called at once."""

    def named(name: str) -> Callable[[_Thing], _Thing]:
        module = str(sys._getframe(1).f_globals.get("__name__", ""))

        def register(thing: _Thing) -> _Thing:
            made = thing() if record and callable(thing) else thing
            _in_scripts[group][name] = (made, Plugin(group.removesuffix("s"), name, *_package(module)))
            return thing

        return register

    return named


recipe = _decorator(Group.RECIPES, record=True)
"""Registers a function that makes a ``Recipe``: ``@recipe("mine")``."""
variant = _decorator(Group.VARIANTS, record=True)
"""Registers a function that makes a ``Variant``: ``@variant("dpsgd.mine")``."""
bound = _decorator(Group.BOUNDS, record=True)
"""Registers a class derived from ``RobustnessBound``: ``@bound("mine.gaussian")``."""
attack = _decorator(Group.ATTACKS, record=False)
"""Registers a function that makes an ``Attack``: ``@attack("mine")``."""
experiment = _decorator(Group.EXPERIMENTS, record=True)
"""Registers a table or figure of ``reproduce``: ``@experiment("mine-fig1")``."""
command = _decorator(Group.COMMANDS, record=False)
"""Registers a verb of the command line: ``@command("mine")``; only for scripts that then call ``twinproof.cli.main.run``."""


def layer_rule(*kinds: type) -> Callable[[_Thing], _Thing]:
    """Registers the gradient rule of these layer types: ``@layer_rule(MyLinear)``; see ``training.per_example.handles``."""
    registered: Callable[[_Thing], _Thing] = import_module("twinproof.training.per_example").handles(*kinds)
    return registered
