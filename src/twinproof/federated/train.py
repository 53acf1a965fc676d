"""Training a run with parties: the run on disk is a pooled run's, and ``verify``, ``certify`` and ``report`` take it as one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from twinproof.compute.devices import describe_device
from twinproof.data.record import Dataset
from twinproof.errors import system_faults
from twinproof.federated.agreement import ASSUMPTIONS, SECTION, Agreement, describe, public_part, refuse_other_agreement
from twinproof.federated.coordinator import FederatedGradients, RoundLog
from twinproof.federated.messages import Parties
from twinproof.files import make_folder
from twinproof.keys import Key
from twinproof.privacy.ledger import Ledger
from twinproof.privacy.plan import PrivateExecution
from twinproof.progress import Progress, Silent
from twinproof.recipes.network import ChosenPath, Own
from twinproof.recipes.redistribution import public_records
from twinproof.recipes.resumption import load_ledger, refuse_other_prior, refuse_started
from twinproof.recipes.train import Session, begin_run
from twinproof.runs import private_files
from twinproof.runs.layout import COMPLETE, STARTED, RunLayout, config_digest, exclusive, read_run_json
from twinproof.runs.run import Run
from twinproof.training.loop import CHECKPOINT_FILE
from twinproof.training.per_example.paths import trainable_parameters
from twinproof.training.sources import GradientSource

_CPU = torch.device("cpu")  # the coordinator only adds up; parties compute where their settings say


@dataclass(frozen=True, kw_only=True)
class FederatedSession(Session):
    """A session whose gradients come from parties. Its ``dataset`` has no training records but the public test records."""

    agreement: Agreement
    parties: Parties
    fewest: int

    unit: ClassVar[str] = "rounds"
    assumptions: ClassVar[tuple[str, ...]] = ASSUMPTIONS
    device: ClassVar[torch.device] = _CPU
    # Before anybody hears of a step's weights: a kill must not make another version of them with the same noise.
    checkpoint_every: ClassVar[int] = 1

    @property
    def purpose(self) -> str:
        return f"checkpoint of federation {self.agreement.sha256}"

    def source(self, model: nn.Module, ledger: Ledger, chosen: ChosenPath | None, progress: Progress) -> GradientSource:
        """See :class:`Session`. The coordinator has no records to draw from: the parties draw theirs."""
        parameters = sum(value.numel() for value in trainable_parameters(model).values())
        execution = PrivateExecution(self.agreement.plan, self.key, ledger, records=0, parameters=parameters, device=_CPU)
        log = RoundLog(self.private, progress)
        return FederatedGradients(self.agreement, execution, model, self.parties, log, fewest=self.fewest)


@system_faults("run the same command again with --resume (from Python: resume=True)")
def federate(
    agreement: Agreement,
    parties: Parties,
    public: Dataset,
    out: Path | str,
    *,
    resume: bool = False,
    fewest: int = 1,
    progress: Progress | None = None,
) -> Run:
    """Coordinates a run into the directory ``out``; with ``resume`` continues one that was interrupted (or starts it).

    ``public`` is the data set without its training records; of one that has them only the test part is looked at. A round
    with fewer than ``fewest`` usable answers stops the run.

    Guarantees
        - Epsilon is that of a pooled run under the same plan, for every record of every party: a record is one party's, is
          drawn by it with the plan's rate, and moves the sum of all parties by at most the clipping norm.
        - The weights after a step are on the disk before a party sees them, and a resumed run goes on from there: no two
          versions of one step's weights, which share their noise, ever leave the coordinator.
        - The coordinator keeps no update: outside ``private/`` nothing depends on one except through the plan.
    """
    root, public, config = Path(out), public_part(public), agreement.config
    started = RunLayout(root).run_json.is_file()
    if not resume:
        refuse_started(root)
    make_folder(root, "the run")
    with exclusive(root):
        if started:
            refuse_other_agreement(root, agreement)
            if read_run_json(root).get("state") == COMPLETE:
                private_files.forget_training_secrets(RunLayout(root).private, CHECKPOINT_FILE)
                return Run.open(root)
        else:
            key = Key.from_system() if config.seed is None else Key.from_seed(config.seed)
            device = f"{describe_device(_CPU)}, {len(agreement.parties)} parties"
            sections: dict[str, Any] = {SECTION: describe(agreement)}
            begin_run(root, config, public, key, device=device, pooled=False, **sections)
        record, layout = read_run_json(root, STARTED), RunLayout(root)
        refuse_other_prior(config, record)
        digest = config_digest(record["config"])
        session = FederatedSession(
            root=root,
            config=config,
            dataset=public,
            key=private_files.load_key(layout.private),
            ledger=load_ledger(layout, digest),
            digest=digest,
            own=Own(),
            public=public_records(config, public, None),
            agreement=agreement,
            parties=parties,
            fewest=fewest,
        )
        session.train(progress or Silent())
    return Run.open(root)
