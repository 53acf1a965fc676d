"""The trial of own networks: rows that round differently, numbers that belong to rows, records that meet."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from own_modules.harmless import CLASSES, SHAPE, DropoutMlp, Mlp, OddMlp, TorchvisionStochasticDepth
from twinproof.errors import ModelError
from twinproof.training.loop import mean_cross_entropy
from twinproof.training.own_network import trial
from twinproof.training.own_network.trial import Draws, Probe, RowTrial, make_probe, seeded, try_forward, try_state
from twinproof.training.per_example import FastPath, VmapPath
from twinproof.training.per_example.choose import shifted_parameters
from twinproof.training.per_example.paths import PerExamplePath, SinglePath, SpacedPath

RECORDS = 24


def made(kind: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(1)
    return kind().train()


def probe_for(model: nn.Module, records: int = RECORDS, copies: int = 1) -> Probe:
    public = torch.rand(5, *SHAPE, generator=torch.Generator().manual_seed(2))
    return make_probe(model, public, CLASSES, records=records, copies=copies)


@pytest.fixture(autouse=True)
def _one_thread() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def kink(model: OddMlp) -> Tensor:
    """A record whose hidden value is 0 up to rounding: its sign is decided by the order of a sum of thirty products."""
    record = torch.zeros(*SHAPE)
    weights, bias = model.first.weight.detach()[0].double(), float(model.first.bias.detach()[0])
    generator = torch.Generator().manual_seed(5)
    for _ in range(4000):
        values = torch.rand(30, generator=generator, dtype=torch.float64)
        hidden = float(values @ weights) + bias
        values[0] = (values[0] - hidden / weights[0]).float()
        if not 0 <= values[0] <= 1:
            continue
        record.view(-1)[:30] = values.float()
        rows = record.expand(RECORDS, *SHAPE).contiguous()
        signs = model.first(rows.flatten(1)[:, :30].contiguous())[:, 0] > 0
        if bool(signs.any()) and not bool(signs.all()):
            return record
    pytest.skip("on this machine no row rounds in another way")


def gradients_of_equal_rows(path: PerExamplePath, record: Tensor) -> Tensor:
    inputs = record.expand(RECORDS, 1, *SHAPE).contiguous()
    return path.gradients(inputs, torch.zeros(RECORDS, dtype=torch.long)).by_name["first.weight"].instantiate()


def test_a_record_on_the_kink_tells_its_row_on_the_fast_path_and_not_on_the_one_that_is_taken() -> None:
    """What separated real trainings: the gradient of one record, large or nothing, by the row that it stands in."""
    model = made(OddMlp)
    assert isinstance(model, OddMlp)
    record, probe = kink(model), probe_for(model)
    fast = FastPath(model, mean_cross_entropy)
    bare = gradients_of_equal_rows(fast, record)
    assert (bare - bare[0]).abs().max() > 1e-3 * bare.abs().max(), "not a matter of rounding"
    assert "changes with its row" in RowTrial(fast, probe).reason()
    for path in (SpacedPath(fast, 4), SpacedPath(fast, 16), SinglePath(model, mean_cross_entropy)):
        assert RowTrial(path, probe).reason() == ""
        found = gradients_of_equal_rows(path, record)
        assert torch.equal(found, found[:1].expand_as(found))


@pytest.mark.parametrize("kind", [Mlp, OddMlp, DropoutMlp])
@pytest.mark.parametrize("copies", [1, 3])
def test_slower_paths_give_the_same_gradients(kind: type[nn.Module], copies: int) -> None:
    model = made(kind).eval()
    probe = probe_for(model, 5, copies)
    wanted = FastPath(model, mean_cross_entropy).gradients(probe.inputs, probe.labels)
    for path in (SinglePath(model, mean_cross_entropy), SpacedPath(FastPath(model, mean_cross_entropy), 4)):
        found = path.gradients(probe.inputs, probe.labels)
        assert torch.allclose(found.losses, wanted.losses, atol=1e-6)
        for name, value in wanted.by_name.items():
            assert torch.allclose(found.by_name[name].instantiate(), value.instantiate(), atol=1e-6)
        assert len(path.gradients(probe.inputs[:0], probe.labels[:0]).losses) == 0


def test_dropout_belongs_to_rows_on_every_path() -> None:
    model = made(DropoutMlp)
    probe = probe_for(model)
    for path in (FastPath(model, mean_cross_entropy), VmapPath(model, mean_cross_entropy)):
        assert RowTrial(path, probe).reason() == ""


def test_numbers_of_other_rows_are_found() -> None:
    """Drawn one for each row, and then used by the next row: no seed and no variance would tell."""

    class Borrowed(Mlp):
        def forward(self, images: Tensor) -> Tensor:
            drawn = torch.empty(len(images), 1).bernoulli_(0.5)
            return super().forward(images) * drawn.roll(1, 0)

    model = made(Borrowed)
    assert "changes with" in RowTrial(FastPath(model, mean_cross_entropy), probe_for(model)).reason()


def test_moved_draws() -> None:
    take = torch.tensor([2, 0, 1])
    with seeded(torch.device("cpu")):
        plain = torch.rand(6, 2)
    with seeded(torch.device("cpu")), Draws(3, take) as draws:
        moved = torch.rand(6, 2)
    assert torch.equal(moved, plain.view(3, 2, 2)[take].view(6, 2))
    assert draws.happened
    with Draws(4) as draws:
        torch.rand(())
        torch.rand(6)
        torch.nn.functional.rrelu(torch.rand(8), training=True)
    assert len(draws.shared) == 1
    assert len(draws.unplaced) == 2


def test_the_trial_leaves_generators_and_the_network_as_they_were() -> None:
    model = made(DropoutMlp)
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(3)
    wanted = torch.rand(3)
    torch.manual_seed(3)
    try_forward(lambda: copy.deepcopy(model), probe_for(model))
    assert torch.equal(torch.rand(3), wanted)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_single_records_draw_where_rows_cannot() -> None:
    model = made(TorchvisionStochasticDepth)
    probe = probe_for(model)
    assert "inplace" in RowTrial(VmapPath(model, mean_cross_entropy), probe).reason()
    assert RowTrial(SinglePath(model, mean_cross_entropy), probe).reason() == ""


class Cornered(Mlp):
    """Rows meet only in batches of more than seven records: what 12d5acf tried had seven."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images - images.mean(0) if len(images) > 7 else images)


def test_what_meets_in_large_passes_only_is_found() -> None:
    model = made(Cornered)
    try_forward(lambda: copy.deepcopy(model), probe_for(model, 7))
    with pytest.raises(ModelError, match="other records of the pass"):
        try_forward(lambda: copy.deepcopy(model), probe_for(model))


def test_a_trial_without_changed_neighbours_would_let_it_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: a trial that forgets to change the other rows."""
    monkeypatch.setattr(trial, "_neighbours", lambda probe, kept: [("the same", probe.inputs)])
    model = made(Cornered)
    try_forward(lambda: copy.deepcopy(model), probe_for(model))


class Remembering(Mlp):
    """Scales by the largest value of its first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.largest: Tensor | None = None

    def forward(self, images: Tensor) -> Tensor:
        if self.largest is None:
            self.largest = images.detach().amax()
        return super().forward(images / self.largest)


def test_a_first_batch_that_stays_is_found_by_a_fresh_copy() -> None:
    model = made(Remembering)
    used = copy.deepcopy(model)
    used(torch.rand(4, *SHAPE))
    with shifted_parameters(used), pytest.raises(ModelError, match=r"Remembering\.largest"):
        try_state(lambda: copy.deepcopy(model), lambda one: FastPath(one, mean_cross_entropy), probe_for(model), used)
    harmless = made(Mlp)
    with shifted_parameters(harmless):
        _, places = try_state(lambda: made(Mlp), lambda one: FastPath(one, mean_cross_entropy), probe_for(model), harmless)
    assert places == []
