"""Making a table or figure again: cells, findings, results file, picture, page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from twinproof.compute.devices import resolve_device
from twinproof.compute.ranks import ALONE, Ranks
from twinproof.errors import ConfigError, DataError, system_faults
from twinproof.files import make_folder, write_atomic
from twinproof.progress import Progress, Silent
from twinproof_papers.catalogue import find_experiment
from twinproof_papers.cell import CELLS, Cell, CellStore, Measured, made_in
from twinproof_papers.certified_under_attack import CertifiedUnderAttack, SecureSgdMnist
from twinproof_papers.comparison import Row, compare, markdown
from twinproof_papers.conventional import SECURESGD, STOBATCH, ConventionalAgainstSize, ConventionalUnderAttack
from twinproof_papers.dpcert.curves import (
    CertifiedCurves,
    Fgsm,
    Group,
    RadiusDistribution,
    combinations_group,
    copies_group,
    table_curves,
)
from twinproof_papers.dpcert.methods import FASHION_MNIST
from twinproof_papers.dpcert.methods import MNIST as DPCERT_MNIST
from twinproof_papers.dpcert.metrics import MetricAgainstRadius, MetricHistograms, MetricSplits
from twinproof_papers.dpcert.tables import CLIPPING_NORMS, LEARNING_RATES, Sensitivity, Table2
from twinproof_papers.drawing import draw_panels, write_picture
from twinproof_papers.experiment import Experiment, Options
from twinproof_papers.findings import Findings, trainings_words
from twinproof_papers.linf import LinfMnist
from twinproof_papers.making import make_cells
from twinproof_papers.methods import CIFAR10, CIFAR10_NOT_PRIVATE, FEW_SIZES, MNIST, MNIST_NOT_PRIVATE, QUICK_DATA
from twinproof_papers.results_file import FILE, devices, results_record, results_text
from twinproof_papers.sigma_curves import SigmaCurves
from twinproof_papers.stobatch import StoBatchCertified, StoBatchMnist

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Reproduction(Protocol):
    """A figure that can be made again."""

    def cells(self, options: Options) -> list[Cell]:
        """The models to train and measure; none where everything is computed."""

    def findings(self, done: Sequence[Measured]) -> Findings:
        """What the finished cells show; a function of them alone."""


@runtime_checkable
class Drawn(Protocol):
    """A figure that is not drawn as panels."""

    def figure(self, findings: Findings, caption: str) -> Figure:
        """The picture."""


@runtime_checkable
class Selectable(Protocol):
    """A table whose rows are methods, each of which can be made without the others."""

    def only(self, methods: tuple[str, ...]) -> Reproduction:
        """The table of these rows alone; ConfigError where it has no such row."""


REPRODUCTIONS: Mapping[str, Reproduction] = {
    "hgm-fig1": SigmaCurves(),
    "hgm-fig2": CertifiedUnderAttack(CIFAR10_NOT_PRIVATE, largest=0.6),
    "hgm-fig3": CertifiedUnderAttack(MNIST_NOT_PRIVATE, largest=0.3),
    "hgm-fig4": ConventionalUnderAttack(CIFAR10, SECURESGD, (2.0, 4.0, 6.0, 8.0, 10.0), sizes=(0.2,), caption_size=0.2),
    "hgm-fig5": ConventionalUnderAttack(MNIST, SECURESGD, (0.2, 0.5, 1.0, 2.0), sizes=FEW_SIZES, caption_size=0.1),
    "securesgd-mnist": SecureSgdMnist(),
    "stobatch-fig2": ConventionalUnderAttack(MNIST, STOBATCH, (0.2, 0.5, 1.0, 2.0), sizes=(0.2,), caption_size=0.2),
    "stobatch-fig4": ConventionalAgainstSize(MNIST, STOBATCH, epsilon=0.2),
    "stobatch-fig6": StoBatchCertified(),
    "stobatch-mnist": StoBatchMnist(),
    "linf-mnist": LinfMnist(),
    "dpcert-table2": Table2(),
    "dpcert-table3": Sensitivity("learning_rate", "learning rate", LEARNING_RATES),
    "dpcert-table4": Sensitivity("clip_norm", "clipping norm", CLIPPING_NORMS),
    "dpcert-fig4": CertifiedCurves((combinations_group(), copies_group((2, 4, 6, 8))), setups=(FASHION_MNIST,), sigmas=(0.5,)),
    "dpcert-fig5": MetricHistograms(DPCERT_MNIST, sigma=0.5),
    "dpcert-fig6": MetricAgainstRadius(DPCERT_MNIST, sigma=0.5),
    "dpcert-fig7": CertifiedCurves((Group("", table_curves()),)),
    "dpcert-fig8": CertifiedCurves((combinations_group(),)),
    "dpcert-fig9": CertifiedCurves((copies_group((2, 4, 6, 8)),)),
    "dpcert-fig10": MetricHistograms(DPCERT_MNIST, sigma=0.25),
    "dpcert-fig11": MetricHistograms(DPCERT_MNIST, sigma=1.0),
    "dpcert-fig12": MetricHistograms(FASHION_MNIST, sigma=0.25),
    "dpcert-fig13": MetricHistograms(FASHION_MNIST, sigma=0.5),
    "dpcert-fig14": MetricHistograms(FASHION_MNIST, sigma=1.0),
    "dpcert-fig15": RadiusDistribution(),
    "dpcert-fig16": Fgsm(),
    "dpcert-fig17": MetricSplits(DPCERT_MNIST, sigma=0.5, metric="lipschitz_logits"),
    "dpcert-fig18": MetricSplits(DPCERT_MNIST, sigma=0.5, metric="gradient_norm"),
    "dpcert-fig19": MetricSplits(DPCERT_MNIST, sigma=0.5, metric="hessian_norm"),
}


PICTURE, PAGE = "figure.svg", "table.md"


@dataclass(frozen=True)
class Reproduced:
    """What was made: the folder with results.json, figure.svg and table.md, and what they say."""

    experiment: Experiment
    folder: Path
    findings: Findings
    rows: list[Row]
    results: dict[str, Any]


@system_faults("run the same command again: it goes on where it stopped")
def reproduce(
    name: str,
    out: Path,
    options: Options | None = None,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    ranks: Ranks = ALONE,
) -> Reproduced:
    """Makes one experiment again into ``out``/name; its cells lie in ``out``/cells, where other experiments find them too.

    With several ``ranks`` (docs/distributed.md) all call this alike and see one folder ``out``; they share out the cells, and
    rank 0 writes the results.
    """
    options, progress = options or Options(), progress or Silent()
    experiment = find_experiment(name)
    reproduction = selected(_runnable(experiment, options), experiment, options.methods)
    cells, store = reproduction.cells(options), CellStore(out / CELLS)
    resolve_device(options.device)  # refused before a folder is made
    make_folder(store.root, "the models")
    done = make_cells(cells, store, options, overwrite=overwrite, progress=progress, name=name, ranks=ranks)
    findings = reproduction.findings(done)
    caption = _caption(done, options)
    folder = out / name
    results = results_record(experiment, options, findings, done, made_in(store.root, cells))
    if ranks.is_first:
        make_folder(folder, "the results")
        write_atomic(folder / FILE, results_text(results).encode())
        write_atomic(folder / PAGE, markdown(experiment, findings, caption, results["command"]).encode())
        write_picture(lambda: figure_of(reproduction, findings, caption), folder / PICTURE)
    ranks.wait()  # who returns finds the files
    return Reproduced(experiment, folder, findings, compare(experiment, findings), results)


def figure_of(reproduction: Reproduction, findings: Findings, caption: str) -> Figure:
    if isinstance(reproduction, Drawn):
        return reproduction.figure(findings, caption)
    return draw_panels(findings.panels, caption, columns=findings.columns, names=findings.names)


def _runnable(experiment: Experiment, options: Options) -> Reproduction:
    if experiment.obstacle:
        raise ConfigError(
            f"{experiment.name} cannot be made here",
            where=f"{experiment.item}: {experiment.shows}",
            got=experiment.obstacle,
            wanted="a table or figure that runs here",
            fix="see `twinproof reproduce --list`",
        )
    available = experiment.availability(options.data_root)
    if not available.runs and not options.quick:
        needed = " and ".join(f"the data set {name!r}" for name in experiment.data)
        raise DataError(
            f"{experiment.name} needs {needed}",
            where=experiment.item,
            got=available.reason,
            wanted="its official files below the data folder",
            fix="give --data-root, or look first with --quick",
        )
    return REPRODUCTIONS[experiment.name] if experiment.reproduction is None else experiment.reproduction()


def selected(reproduction: Reproduction, experiment: Experiment, methods: tuple[str, ...]) -> Reproduction:
    """Only the rows that are asked for, where any are; ConfigError where there are none to choose from."""
    if not methods:
        return reproduction
    if not isinstance(reproduction, Selectable):
        able = [name for name, other in REPRODUCTIONS.items() if isinstance(other, Selectable)]
        raise ConfigError(
            f"{experiment.name} has no rows to choose from",
            where="methods",
            got=", ".join(methods),
            wanted=f"no methods, or one of {', '.join(able)}",
            fix="leave --methods out",
        )
    return reproduction.only(methods)


def _caption(done: Sequence[Measured], options: Options) -> str:
    """Machine, software, date and how sure, so that a picture never stands without them."""
    if not done:
        return "computed, not measured"
    versions = ", ".join(sorted({str(one.made["versions"]["torch"]) for one in done}))
    last = max(str(one.made["date"]) for one in done)[:10]
    measured = done[0].cell.measurement.words()
    first = f"First look ({QUICK_DATA}, small settings), not comparable with the paper. " if options.quick else ""
    return f"{first}{trainings_words(options.seeds)}; {measured}. {devices(done)}; torch {versions}; {last}."
