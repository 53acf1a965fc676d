"""``twinproof recipes`` and ``twinproof data``: what there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from twinproof.cli.output import DataRoot, Json, print_json, print_rows

if TYPE_CHECKING:
    from twinproof.recipes.recipe import Recipe


def recipes(as_json: Json = False) -> None:
    """Lists the recipes and their guarantees.

    Privacy is (epsilon, delta)-differential privacy for one record replaced by nothing; the number of records is public.

    Example: twinproof recipes
    """
    from twinproof.recipes.registry import RECIPES

    if as_json:
        rows = [
            {
                "name": recipe.name,
                "summary": recipe.summary,
                "privacy_status": str(recipe.privacy_status),
                "robustness": recipe.robustness,
                "paper": recipe.paper,
                "variants": _variants(recipe),
                "published_privacy_status": None if recipe.published_privacy is None else str(recipe.published_privacy),
            }
            for recipe in RECIPES.values()
        ]
        print_json({"recipes": rows})
        return
    for recipe in RECIPES.values():
        typer.echo(recipe.name)
        print_rows(
            [
                ("  does", recipe.summary),
                ("  privacy", str(recipe.privacy_status)),
                ("  robustness", recipe.robustness),
                ("  paper", recipe.paper),
                ("  variants", ", ".join(_variants(recipe)) + _published_note(recipe)),
            ]
        )


def _variants(recipe: Recipe) -> list[str]:
    return ["sound"] if recipe.published is None else ["sound", "published"]


def _published_note(recipe: Recipe) -> str:
    """The privacy of the published variant, where it differs."""
    status = recipe.published_privacy
    return "" if status in (None, recipe.privacy_status) else f" (privacy of published: {status})"


def data(data_root: DataRoot = None, as_json: Json = False) -> None:
    """Lists the data sets known by name.

    Instead of a name, --data also takes a path.

    Example: twinproof data
    """
    from twinproof.data.sources import describe_sources

    sources = describe_sources(data_root)
    if as_json:
        print_json({"data": [source.as_dict() for source in sources]})
        return
    print_rows([(source.name, f"{source.description}{'' if source.available else '  (not found)'}") for source in sources])
    typer.echo("or a path: an image folder, .npz, .csv or .parquet")
