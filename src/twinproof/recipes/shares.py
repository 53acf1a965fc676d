"""What the shares of a layer's noise follow, where records decide them; a recipe's choice, like its loss."""

from __future__ import annotations

from enum import StrEnum


class Shares(StrEnum):
    """How a record's part in the shares is measured, and which outputs get more noise for it."""

    GRADIENT = "gradient"  # |dL/dh|^beta: more noise where the loss is more sensitive (HGM, Phan et al. 2019)
    RELEVANCE = "relevance"  # |relevance of h|^beta: less noise where it is more relevant (AdLM, Phan et al. 2017)
