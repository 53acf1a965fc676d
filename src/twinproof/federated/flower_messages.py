"""Requests and updates as Flower's messages: arrays as arrays, the few other fields in one record. Nothing is pickled."""

from __future__ import annotations

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from twinproof.errors import RunError
from twinproof.federated.messages import Failure, Request, Update

FIELDS, ARRAYS = "twinproof.fields", "twinproof.arrays"
PARTY = "party"
# What reading a message that somebody else made may raise; numpy asks for the memory that a header claims.
_BROKEN = (KeyError, TypeError, ValueError, AttributeError, OSError, EOFError, MemoryError)


def request_content(request: Request) -> RecordDict:
    """The content of a message to a party."""
    fields = {"agreement": request.agreement, "step": request.step, "weights_sha256": request.weights_sha256}
    weights = {name: Array(np.ascontiguousarray(value.cpu().numpy())) for name, value in request.weights.items()}
    return RecordDict({FIELDS: ConfigRecord(fields), ARRAYS: ArrayRecord(weights)})


def read_request(message: Message) -> Request:
    """The request in a message from the coordinator; RunError where there is none."""
    try:
        fields, arrays = message.content[FIELDS], message.content[ARRAYS]
        weights = {str(name): torch.from_numpy(array.numpy().copy()) for name, array in arrays.items()}
        return Request(str(fields["agreement"]), int(fields["step"]), weights, str(fields["weights_sha256"]))
    except _BROKEN as error:
        raise RunError("the request cannot be read", where="message of the coordinator", got=error) from error


def update_content(update: Update) -> RecordDict:
    """The content of a party's answer."""
    fields = {PARTY: update.party, "step": update.step, "drawn": update.drawn, "weights_sha256": update.weights_sha256}
    sums = {name: Array(np.ascontiguousarray(value)) for name, value in update.sums.items()}
    return RecordDict({FIELDS: ConfigRecord(fields), ARRAYS: ArrayRecord(sums)})


def read_update(message: Message) -> Update | Failure:
    """What a party sent. Types and values are left to the checks; what cannot even be read is a failure."""
    if message.has_error():
        return Failure(str(message.error.reason))
    try:
        fields, arrays = message.content[FIELDS], message.content[ARRAYS]
        sums = {str(name): array.numpy() for name, array in arrays.items()}
        return Update(fields[PARTY], fields["step"], fields["drawn"], sums, fields["weights_sha256"])
    except _BROKEN as error:
        return Failure(f"the update cannot be read: {type(error).__name__}")


def name_content(name: str) -> RecordDict:
    """A party's answer to the question who it is."""
    return RecordDict({FIELDS: ConfigRecord({PARTY: name})})


def read_name(message: Message) -> str | Failure:
    """Who a node says it is, or why it does not."""
    if message.has_error():
        return Failure(str(message.error.reason))
    try:
        return str(message.content[FIELDS][PARTY])
    except _BROKEN:
        return Failure("the node does not say which party it is")
