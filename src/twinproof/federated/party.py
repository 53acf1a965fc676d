"""A party: it keeps its records and its key, and answers with clipped sums alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from twinproof.compute.devices import own_generators, resolve_device
from twinproof.data.record import Dataset, Split, fingerprint
from twinproof.errors import ConfigError, DataError, RunError
from twinproof.federated.agreement import Agreement
from twinproof.federated.messages import Request, Update
from twinproof.files import make_folder, write_json
from twinproof.keys import KEY_BYTES, Key
from twinproof.privacy.plan import ClipRule, clip_weights
from twinproof.privacy.step_randomness import step_randomness
from twinproof.recipes.network import Own, per_example_path, run_network
from twinproof.runs.layout import create_private_folder, exclusive
from twinproof.runs.reading import Count, read_json
from twinproof.training.loop import weights_digest
from twinproof.training.passes import Batching, DeviceRecords, layers_draw, pass_mode, physical_batch_size
from twinproof.training.per_example.paths import trainable_parameters
from twinproof.training.sources import ClippedPass, step_sums


@dataclass(frozen=True)
class Answer:
    """The last step that was answered, the weights it was answered for, and whose records (a keyed digest)."""

    records: str
    step: Count
    weights_sha256: str


class AnsweredSteps:
    """The memory of one party in one agreement; in ``folder`` it outlives the party's process.

    ``records`` is a keyed digest of the party's records: the numbers that belong to a key and a step are drawn for them alone.

    Guarantees
        When ``take`` returns, the step is on the disk (with a folder), and no party with that memory, in this process or in
        another one, takes the same step for other weights, an earlier step, or any step with other records or another key.
    """

    def __init__(self, party: str, agreement: str, records: str, folder: Path | None) -> None:
        self._party = party
        self._records = records
        self._path = None if folder is None else folder / f"answered-{agreement}.json"
        self._last: Answer | None = None
        if folder is not None:
            make_folder(folder, "what the party has answered")
            create_private_folder(folder)
            self._read()  # a party that cannot answer is refused now

    def take(self, step: int, weights_sha256: str) -> None:
        """Remembers that ``step`` is about to be answered; RunError where it must not be."""
        taken = Answer(self._records, step, weights_sha256)
        if self._path is None:
            self._refuse(taken, self._last)
            self._last = taken
            return
        try:
            # Another process of the same party may have answered since this one looked.
            with exclusive(self._path.parent, waits=True):
                last = self._read()
                self._refuse(taken, last)
                if taken != last:
                    write_json(self._path, asdict(taken))
        except OSError as error:
            raise self._refused("the party cannot write down what it answers", error, "a folder to write to") from error

    def _refuse(self, taken: Answer, last: Answer | None) -> None:
        if last is not None and taken.step <= last.step and taken != last:
            raise self._refused(
                "a step is asked for again with other weights",
                f"step {taken.step}",
                f"step {last.step} with the same weights, or a later one",
            )

    def _read(self) -> Answer | None:
        if self._path is None or not self._path.is_file():
            return None
        try:
            stored = read_json(self._path).typed(Answer)
        except (OSError, RunError) as error:
            raise self._refused("what this party has answered cannot be read", error, "the file that it wrote") from error
        if stored.records != self._records:
            raise self._refused(
                "the party has answered with other records or another key",
                "another fingerprint",
                "the records and the key that it began with; or a new agreement",
            )
        return stored

    def _refused(self, what: str, got: object, wanted: str) -> RunError:
        return RunError(what, where=f"party {self._party}", got=got, wanted=wanted)


Sums = Callable[[Tensor, int], Mapping[str, Tensor]]
"""Rows of the drawn records, and the step -> the sum of their clipped gradients by parameter name, in float64."""


def party_sums(agreement: Agreement, model: nn.Module, records: DeviceRecords, public: Dataset, key: Key) -> Sums:
    """What a party does with its draw; copies and layers take their noise from the party's own ``key``."""
    config, plan, device = agreement.config, agreement.plan, records.device
    shapes = {name: value.detach() for name, value in trainable_parameters(model).items()}
    parameters = sum(value.numel() for value in shapes.values())

    def weights(squared_norms: Tensor) -> Tensor:
        return clip_weights(squared_norms, plan.clip_threshold(parameters), ClipRule(plan.clip_rule), plan.clip_r)

    path, mode = per_example_path(config, model, public), pass_mode(model, device)
    augmentation = config.spec.augmentation(config)
    rows = physical_batch_size(
        config.performance,
        max(1.0, plan.sample_rate * len(records)),
        copies=augmentation.copies,
        device=device.type,
        parameters=parameters,
        workers=mode.workers,
    )
    batching = Batching(records, augmentation, rows, key, layers_draw(model))
    found = step_sums(ClippedPass(path, weights), batching, shapes, mode)

    def sums(rows_drawn: Tensor, step: int) -> Mapping[str, Tensor]:
        path.begin(step, key)
        return found.of(rows_drawn, step).by_name

    return sums


# Taken off when a sum is brought down to the cap, so that rounding cannot leave it above.
_ROOM = 1 - 2.0**-40
_CPU = torch.device("cpu")


def repeatable_key(seed: int, name: str) -> Key:
    """The key of party ``name`` in a run that is repeatable, and therefore not private; every party has its own."""
    return Key.from_seed(seed).within(f"party {name}")


class Party:
    """One party's records, with a secret key; without ``key`` a fresh one from the system.

    With a ``key`` of its own, which outlives its process, a party needs a ``memory``: a folder of its own that does too.

    Guarantees
        - Every record is drawn independently with probability at most the plan's rate, from this party's key: neither the
          coordinator nor another party can tell which records a round used, and amplification by sampling holds for them.
        - One record moves the sums that leave by at most the clipping threshold in l2 norm: each gradient is clipped by its own
          norm, and bringing a long sum down to the cap is a projection onto a ball, which moves no two points apart.
        - An answer of an honest party passes every check of the coordinator for any records: being refused says
          nothing about a record.
        - A step is answered for one set of weights only; asked again with the same ones, the answer is the same. With a
          ``memory`` that holds for a party that is started again, which then must have the same records.
        - Every number that is drawn belongs to the agreement: one key in two of them draws independently.
    """

    def __init__(
        self,
        name: str,
        records: Split,
        agreement: Agreement,
        public: Dataset,
        *,
        key: Key | None = None,
        memory: Path | None = None,
    ) -> None:
        declared = agreement.declared(name)
        _check_records(name, records, public)
        if len(records) > declared.records:
            raise DataError(
                "a party has more records than it has declared",
                where=f"party {name}",
                got=len(records),
                wanted=f"at most {declared.records}",
                fix="make a new agreement with the right number; it is public",
            )
        if key is not None and memory is None and agreement.config.seed is None:
            raise ConfigError(
                "a party with a key of its own must remember what it has answered",
                where=f"party {name}",
                got="a key, and no memory",
                wanted="a folder of the party's own as memory",
                fix="give memory=, or leave the key out: a fresh one for each start costs nothing",
            )
        if key is None and memory is not None:
            raise ConfigError(
                "a memory without a key is of no use when the party is started again",
                where=f"party {name}",
                got="a memory, and no key",
                wanted="a key of the party's own that outlives its process, or neither",
            )
        config, device = agreement.config, resolve_device(agreement.config.performance.device)
        key = (key or Key.from_system()).within(f"agreement {agreement.sha256}")
        self.name = name
        self._agreement = agreement
        with own_generators(_CPU):
            self._model = run_network(config, Own(), public).to(device).train()
        held = DeviceRecords(records, public.levels, device)
        self._sums = party_sums(agreement, self._model, held, public, key)
        self._parameters = sum(value.numel() for value in trainable_parameters(self._model).values())
        self._randomness = step_randomness(
            key, device, records=len(records), sample_rate=agreement.plan.sample_rate, parameters=self._parameters
        )
        kept = fingerprint(records, key.stream("fingerprint of a party's records", length=KEY_BYTES))
        self._answered = AnsweredSteps(name, agreement.sha256, kept, memory)

    def answer(self, request: Request) -> Update:
        """The clipped sums of this party's draw at the request's weights; RunError for a request that it did not agree to."""
        self._check(request)
        self._load(request.weights)
        digest = weights_digest(self._model)
        # Two sets of weights for one step would be two releases for the price of one.
        self._answered.take(request.step, digest)
        drawn = self._randomness.sample(request.step, announced=request.step + 1)
        sums = self._within_cap(self._sums(drawn, request.step))
        counted = min(len(drawn), self._agreement.caps[self.name])
        arrays = {name: np.ascontiguousarray(value.cpu().numpy()) for name, value in sums.items()}
        return Update(self.name, request.step, counted, arrays, digest)

    def _check(self, request: Request) -> None:
        if request.agreement != self._agreement.sha256:
            raise self._refused("the request is of another agreement", request.agreement[:12], self._agreement.sha256[:12])
        if not 0 <= request.step < self._agreement.plan.steps:
            raise self._refused("there is no such step in the plan", request.step, f"0..{self._agreement.plan.steps - 1}")

    def _load(self, weights: Mapping[str, Tensor]) -> None:
        try:
            self._model.load_state_dict(dict(weights))
        except (RuntimeError, TypeError) as error:
            raise self._refused("the weights do not fit the network", error, "the weights of the agreed network") from error

    def _within_cap(self, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
        longest = self._agreement.caps[self.name] * self._agreement.plan.clip_threshold(self._parameters)
        length = math.sqrt(sum(float(value.square().sum()) for value in sums.values()))
        if length <= longest:
            return dict(sums)
        return {name: value * (longest * _ROOM / length) for name, value in sums.items()}

    def _refused(self, what: str, got: object, wanted: str) -> RunError:
        return RunError(what, where=f"party {self.name}", got=got, wanted=wanted)


def _check_records(name: str, records: Split, public: Dataset) -> None:
    """Refuses records that are not of the agreed kind; a party need not have records of every class."""
    shape, outside = tuple(records.inputs.shape[1:]), (records.labels < 0) | (records.labels >= len(public.classes))
    for what, got, wanted, fits in (
        ("the inputs of a party have another shape", shape, str(public.shape), shape == public.shape),
        (
            "inputs are not stored as levels",
            records.inputs.dtype,
            f"uint8 or uint16, up to {public.levels}",
            records.inputs.dtype in (np.uint8, np.uint16) and int(records.inputs.max(initial=0)) <= public.levels,
        ),
        ("the number of inputs and labels differ", len(records.inputs), str(len(records)), len(records.inputs) == len(records)),
        ("a label does not fit the classes", "another class", f"0..{len(public.classes) - 1}", not outside.any()),
    ):
        if not fits:
            raise DataError(what, where=f"party {name}", got=got, wanted=wanted, fix="prepare the records as was agreed")
