"""Devices: which one to use, its arithmetic, a CPU's threads, Triton kernels, CUDA graphs, states of torch's generators.

A private step of a small network is hundreds of kernels of a few microseconds each, and starting them one by one takes the
host longer than running them takes the device.

By default cuDNN may add up parts of a gradient in the order in which they are finished. One record's gradient would then change
by a few bits from run to run, which looks like a gradient that depends on the other records.

The states of torch's generators are decided by all bits of a key. Noise on a record's copies and in a network's layers decides,
with the record, what gradient is clipped. Two neighbouring data sets draw it for other rows of a pass, so the clipped sum is
bounded in law, not number by number: that noise has to be as hard to guess as the noise on the sum. ``manual_seed`` would not
do on a CPU: of its 64 bits the Mersenne twister takes 32, and so few can be tried out.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from subprocess import SubprocessError

import numpy as np
import torch
from torch import Tensor, nn

from twinproof.errors import ConfigError
from twinproof.keys import Key


def resolve_device(name: str) -> torch.device:
    """'auto' takes a GPU where there is one; asking for an absent GPU is an error, not a silent change."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, number = name.partition(":")
    if name != "cpu" and (kind != "cuda" or (number and not (number.isascii() and number.isdecimal()))):
        raise ConfigError("unknown device", where="device", got=repr(name), wanted="auto, cpu, cuda or cuda:N")
    if kind == "cuda" and not (torch.cuda.is_available() and int(number or 0) < torch.cuda.device_count()):
        raise ConfigError("there is no GPU that torch can use", where="device", got=name, wanted="cpu or auto")
    return torch.device(name)


def describe_device(device: torch.device) -> str:
    """The device in words, for records."""
    if device.type == "cuda":
        return f"cuda: {torch.cuda.get_device_name(device)}"
    return f"cpu: {platform.machine()}, {torch.get_num_threads()} threads"


FLOAT32 = "float32"
TF32 = "tf32"


def convolutions_in_tf32() -> bool | None:
    """Whether torch runs float32 convolutions in TF32 on a GPU; None where its settings contradict each other."""
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # torch refuses to answer after its older and its newer settings were mixed
        return None


def products_in_tf32() -> bool | None:
    """The same for matrix products."""
    try:
        return bool(torch.backends.cuda.matmul.allow_tf32)
    except RuntimeError:
        return None


def arithmetic_of(model: nn.Module, device: torch.device) -> str:
    """``tf32`` where torch would run a layer of ``model`` in it (or does not say), else ``float32``."""
    if device.type != "cuda":
        return FLOAT32
    convolutions = any(isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) for layer in model.modules())
    used = (convolutions_in_tf32() is not False and convolutions) or products_in_tf32() is not False
    return TF32 if used else FLOAT32


@contextmanager
def like_convolutions(device: torch.device) -> Iterator[None]:
    """Matrix products inside stand for a convolution's: on a GPU they run in TF32 where torch lets convolutions do so."""
    if device.type != "cuda" or not convolutions_in_tf32() or products_in_tf32() is not False:
        yield
        return
    with matrix_products(True):
        yield


@contextmanager
def matrix_products(tf32: bool) -> Iterator[None]:
    """Matrix products inside run with or without TF32; the setting of torch is left as it was found."""
    before = torch.backends.cuda.matmul.allow_tf32
    if before == tf32:
        yield
        return
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


# Layers of these packages keep nothing on themselves while they run, so that two threads can use one network at a time.
_STATELESS = ("torch.nn.modules.", "twinproof.")


def each_batch(
    votes_of: Callable[[Sequence[int]], Tensor],
    starts: Sequence[int],
    model: nn.Module,
    device: torch.device,
    *,
    one_by_one: bool = False,
) -> Tensor:
    """The sum of ``votes_of`` over all batches, on as many threads as torch would have used.

    The batches are the same for any number of threads, each is worked on by one thread alone, and votes are
    integers: the result does not depend on the number of threads. A network that may keep something on itself between two
    layers (any code that is not torch's or ours, and any hook) runs in one thread, with torch's own threads inside;
    ``one_by_one`` asks for that too, with one thread inside.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or not is_stateless(model):
        return votes_of(starts)
    with one_thread_inside():
        if one_by_one or threads == 1 or len(starts) == 1:
            return votes_of(starts)
        inference = torch.is_inference_mode_enabled()

        def work(own: Sequence[int]) -> Tensor:
            # Inference mode is a thread's own; a new thread starts without it.
            with torch.inference_mode(inference):
                return votes_of(own)

        with ThreadPoolExecutor(threads) as pool:
            parts = list(pool.map(work, (starts[at::threads] for at in range(min(threads, len(starts))))))
    return torch.stack(parts).sum(dim=0)


@contextmanager
def one_thread_inside() -> Iterator[None]:
    """Each operation of torch runs on one thread; the number that was set is put back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def is_stateless(model: nn.Module) -> bool:
    """Whether all layers are torch's or ours, without hooks: they keep nothing on themselves while they run."""
    return all(
        type(layer).__module__.startswith(_STATELESS) and not (layer._forward_hooks or layer._forward_pre_hooks)
        for layer in model.modules()
    )


@cache
def kernels_run(device: torch.device) -> bool:
    """Whether a small kernel ran on ``device``; not so without a GPU, without Triton, or without the compiler it calls."""
    if device.type != "cuda":
        return False
    try:
        from twinproof.compute.cipher_kernel import chacha20_blocks

        with torch.cuda.device(device):
            chacha20_blocks(torch.zeros(1, 8, dtype=torch.int32, device=device), 1)
    except (ImportError, OSError, RuntimeError, SubprocessError):
        return False
    return True


# Plain runs before the recording: libraries choose algorithms, allocate workspace and compile kernels on their first calls.
_PLAIN_RUNS = 2


class Captured:
    """``work`` without arguments, on tensors that stay where they are; on anything but a GPU it is simply called.

    The first calls run the work plainly, a later one records it, and from then on every call replays the recording.
    ``generators`` are those that the work draws from, besides the device's own: a recording then draws from where each
    stands when it is replayed. Work that cannot be recorded is called as before.

    Every call does the work exactly once. What the work reads from Python (a learning rate, a list's length) is read when it is
    recorded and stays so: only work whose Python side never changes may be captured.
    """

    def __init__(self, work: Callable[[], None], device: torch.device, generators: Sequence[torch.Generator] = ()) -> None:
        self._work = work
        self._device = device
        self._generators = generators
        self._plain_runs = _PLAIN_RUNS if device.type == "cuda" else -1
        self._graph: torch.cuda.CUDAGraph | None = None

    @property
    def is_recorded(self) -> bool:
        """Whether calls replay a recording by now."""
        return self._graph is not None

    def __call__(self) -> None:
        """Does the work once."""
        if self._graph is not None:
            self._graph.replay()
        elif self._plain_runs < 0:
            self._work()
        elif self._plain_runs > 0:
            self._plain_runs -= 1
            self._on_a_side_stream()
        else:
            self._record()
            self()

    def _on_a_side_stream(self) -> None:
        """Recording uses a stream of its own, and the workspace that the first runs leave must belong to such a stream."""
        side, current = torch.cuda.Stream(self._device), torch.cuda.current_stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(current)
        with torch.cuda.stream(side):
            self._work()
        current.wait_stream(side)

    def _record(self) -> None:
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        torch.cuda.synchronize(self._device)
        try:
            with torch.cuda.graph(graph):
                self._work()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            self._plain_runs = -1
            return
        self._graph = graph


@contextmanager
def repeatable_convolutions(device: torch.device) -> Iterator[None]:
    """Only algorithms with a fixed order of addition inside; on a CPU there is nothing to choose."""
    cudnn = torch.backends.cudnn
    if device.type != "cuda":
        yield
        return
    with cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=cudnn.allow_tf32):
        yield


# The words of the twister's state, and where they begin among the bytes that torch keeps of it.
_WORDS, _FIRST = 624, 24


def seed_generator(generator: torch.Generator, key: Key, purpose: str, *counters: int) -> None:
    """Puts ``generator`` into the state that belongs to ``purpose`` and ``counters`` alone.

    Guarantees
        On a CPU the whole state, 19,937 bits, is the key's stream; on a GPU the counter generator gets a 63-bit seed of it.
    """
    if generator.device.type != "cpu":
        generator.manual_seed(key.seed(purpose, *counters))
        return
    words = np.frombuffer(key.stream(purpose, *counters, length=4 * _WORDS), dtype="<u4")
    state = torch.Generator().manual_seed(0).get_state()
    state.numpy()[_FIRST : _FIRST + 8 * _WORDS] = words.astype("<u8").view(np.uint8)
    generator.set_state(state)


def seed_default_generators(device: torch.device, key: Key, purpose: str, *counters: int) -> None:
    """The same for the generators that layers draw from: the host's, and that of ``device`` where it is a GPU."""
    seed_generator(torch.default_generator, key, purpose, *counters)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(key.seed(purpose, *counters))


# Layers draw from torch's own generators, of which a process has one for each device.
_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def own_generators(device: torch.device) -> Iterator[None]:
    """Torch's own generators belong to this thread inside and are restored afterwards; other threads that ask for them wait."""
    with _ONE_AT_A_TIME, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
