"""The network that a run trains."""

from dataclasses import replace

import torch
from torch import nn

from mrdc._utils.errors import UsageError
from mrdc._utils.registry import lookup
from mrdc.methods.base import Method
from mrdc.nn.branches import with_body
from mrdc.nn.checkpoint import BUILT_IN, HEADS, WIDTHS, Architecture
from mrdc.training.settings import LearnSettings


def make_architecture(
    settings: LearnSettings, method: Method, network: nn.Module | None = None
) -> Architecture:
    """The network that settings and method ask for; registers the head of the method."""
    needs, size, stem = method.needs, settings.size or 224, settings.stem
    head = needs.head.__name__
    if head in BUILT_IN and needs.head is not HEADS[head]:
        raise UsageError(
            f"head {needs.head.__module__}.{head} has the name of a built-in head: rename the class"
        )
    HEADS[head] = needs.head
    if stem == "auto":
        stem = "3x3" if size <= 64 else "7x7"
    width = 0 if network is not None else lookup(WIDTHS, settings.network, "network")
    module = "" if network is None else type(network).__name__
    return Architecture(needs.variant, head, width, stem, size, module=module)


def extra_bytes(made: Architecture, method: Method, network: nn.Module | None = None) -> int:
    """Bytes of the parameters that a method adds to the network after the first phase."""
    body = method.needs.body
    if body == "plain":
        return 0
    bodies: tuple[nn.Module, nn.Module]
    if network is not None:
        bodies = with_body(made.build(network).backbone, body), network  # type: ignore[arg-type]
    else:
        with torch.device("meta"):
            bodies = replace(made, body=body).build(), made.build()
    more, fewer = (sum(p.nbytes for p in net.parameters()) for net in bodies)
    return more - fewer
