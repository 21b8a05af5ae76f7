"""The large linear layers of a language model: which they are, and other modules in their place that compute the same.

Knows neither how these keep their weights nor why. Imports torch, so only the thread that loads imports it. A model
whose layers were exchanged cannot be trained, moved or saved.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

PROBED = 8  # tokens that a changed model is tried with
FEWEST_WEIGHTS = 100_000  # below, a product costs less than calling another op
SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # layers that get the same rows, by their names
Maker = Callable[[Sequence[nn.Linear]], nn.Module]  # one module for all of these, their outputs one after the other


class Unfit(Exception):
    """A model that computes something else with other layers, or nothing: it reads its weights in a way of its own."""


class Together:
    """Layers that a model gives the same rows one after the other: one product, made for the first, for all of them."""

    def __init__(self, linears: Sequence[nn.Linear], make: Maker) -> None:
        self._whole = make(linears)
        self._sizes = [linear.out_features for linear in linears]
        self._rows: torch.Tensor | None = None
        self._products: list[torch.Tensor] = []

    def part(self, place: int, rows: torch.Tensor) -> torch.Tensor:
        """The product of the layer at `place`. Whatever the order of the calls and their rows are, it is right."""
        if self._rows is not rows:
            self._rows, self._products = rows, list(self._whole(rows).split(self._sizes, dim=-1))
        product = self._products[place]
        if place == len(self._sizes) - 1:
            self._rows, self._products = None, []  # nothing is kept beyond its use
        return product


class Part(nn.Module):
    """One of the layers that are computed together."""

    def __init__(self, together: Together, place: int, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._together, self._place = together, place

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features]"""
        return self._together.part(self._place, rows)


def large(parent: nn.Module) -> dict[str, nn.Linear]:
    """Its large linear layers by name. Layers of a kind of their own may read their weights themselves."""
    return {
        name: child
        for name, child in parent.named_children()
        if type(child) is nn.Linear and child.weight.numel() >= FEWEST_WEIGHTS
    }


def all_large(model: nn.Module) -> list[nn.Linear]:
    return [linear for parent in model.modules() for linear in large(parent).values()]


def size_bytes(model: Any, bits: int, dtype: torch.dtype) -> int:
    """What its weights take where those of linear layers, but the head's, have so many bits; the rest is in `dtype`."""
    head = model.get_output_embeddings()
    linears = [module for module in model.modules() if isinstance(module, nn.Linear) and module is not head]
    few: dict[int, int] = {id(linear.weight): linear.weight.numel() for linear in linears}
    rest: int = sum(parameter.numel() for parameter in model.parameters() if id(parameter) not in few)
    return sum(few.values()) * bits // 8 + rest * dtype.itemsize


def joined_bias(linears: Sequence[nn.Linear]) -> torch.Tensor | None:
    """That of layers which all have one; siblings that are not alike in this are never joined."""
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    return torch.cat(biases) if biases else None


def exchange(model: nn.Module, make: Maker) -> int:
    """Put what `make` makes in the place of the large linear layers, one after the other; says how many there were."""
    return sum(_exchange_children(parent, make) for parent in list(model.modules()))


def checked(model: nn.Module, change: Callable[[], int], *, within: float, so: str) -> int:
    """Make a change that must not move the model's logits by more than `within`, relatively, and say its result.

    Raises Unfit if it does, with `so` for how the weights are then: the model is of no use then.
    """
    expected = _probe(model)
    changed = change()
    try:
        error = _moved(_probe(model), expected)
    except Exception as raised:
        raise Unfit(f"it fails with {so} weights: {raised}") from raised
    if not error < within:
        raise Unfit(f"it computes something else with {so} weights (by {error:.1%})")
    return changed


def _probe(model: Any) -> torch.Tensor:
    """[rows, vocabulary]: the logits of ordinary tokens. The first and last of a vocabulary are seldom trained."""
    known = model.get_input_embeddings().num_embeddings
    ids = torch.linspace(known // 4, 3 * known // 4, PROBED).long()
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=ids[None], use_cache=False).logits[0].float()
    return logits - logits.mean(dim=-1, keepdim=True)  # what all tokens have in common decides nothing


def _moved(logits: torch.Tensor, expected: torch.Tensor) -> float:
    """By how much a row is off, relatively. The median of them: text without sense can bring a single one to tip."""
    return float(((logits - expected).norm(dim=-1) / expected.norm(dim=-1)).median())


def _exchange_children(parent: nn.Module, make: Maker) -> int:
    layers = large(parent)
    count = len(layers)
    for names in SIBLINGS:
        siblings = [layers[name] for name in names if name in layers]
        if len(siblings) == len(names) and len({(one.in_features, one.bias is None) for one in siblings}) == 1:
            together = Together(siblings, make)
            for place, name in enumerate(names):
                setattr(parent, name, Part(together, place, layers.pop(name)))
    for name, linear in layers.items():
        setattr(parent, name, make([linear]))
    return count
