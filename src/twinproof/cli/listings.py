"""``twinproof recipes`` and ``twinproof data``: what there is."""

from __future__ import annotations

import typer

from twinproof.cli.output import DataRoot, Json, print_json, print_rows
from twinproof.data.load import describe_sources
from twinproof.recipes.recipe import PUBLISHED, Recipe, variants_of
from twinproof.recipes.registry import all_recipes, privacy_status


def recipes(as_json: Json = False) -> None:
    """Lists the recipes and their guarantees.

    Privacy is (epsilon, delta)-differential privacy for one record replaced by nothing; the number of records is public.

    Example: twinproof recipes
    """
    if as_json:
        rows = [
            {
                "name": recipe.name,
                "summary": recipe.summary,
                "privacy_status": str(privacy_status(recipe)),
                "robustness": recipe.robustness,
                "paper": recipe.paper,
                "variants": (variants := variants_of(recipe.name)),
                "published_privacy_status": str(recipe.variant_status(PUBLISHED)) if PUBLISHED in variants else None,
            }
            for recipe in all_recipes()
        ]
        print_json({"recipes": rows})
        return
    for recipe in all_recipes():
        typer.echo(recipe.name)
        print_rows(
            [
                ("  does", recipe.summary),
                ("  privacy", str(privacy_status(recipe))),
                ("  robustness", recipe.robustness),
                ("  paper", recipe.paper),
                ("  variants", ", ".join(variants_of(recipe.name)) + _notes(recipe)),
            ]
        )


def _notes(recipe: Recipe) -> str:
    """What its variants promise, where that is not what the line on privacy says."""
    others = {name: recipe.variant_status(name) for name in variants_of(recipe.name)[1:]}
    return "".join(f" (privacy of {name}: {status})" for name, status in others.items() if status is not recipe.privacy_status)


def data(data_root: DataRoot = None, as_json: Json = False) -> None:
    """Lists the data sets known by name.

    Instead of a name, --data also takes a path.

    Example: twinproof data
    """
    sources = describe_sources(data_root)
    if as_json:
        print_json({"data": [source.as_dict() for source in sources]})
        return
    print_rows([(source.name, f"{source.description}{'' if source.available else '  (not found)'}") for source in sources])
    typer.echo("or a path: an image folder, .npz, .csv or .parquet")
