"""What `--dtype` and `--weights` come to on this machine: how a model is read, and how its weights are kept.

Knows the settings and what there is to compute with, and no model. Imports torch when it is asked, so only the thread
that loads asks it.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from streaming.errors import ModelError

if TYPE_CHECKING:
    import torch
    from transformers import BitsAndBytesConfig, PreTrainedConfig

INSTALL = "pip install bitsandbytes"


@dataclass(frozen=True, slots=True)
class Precision:
    """`read` is what the files are read in, `compute` what the model computes in."""

    read: "torch.dtype"
    compute: "torch.dtype"
    int8: bool = False  # the large layers are kept in 8 bits, by streaming/int8.py
    library: "BitsAndBytesConfig | None" = None  # or by transformers, while it reads them

    @property
    def library_bits(self) -> int:
        """Of a weight in a large layer, where the library keeps it."""
        if self.library is None:
            return 8 * self.read.itemsize
        return 4 if self.library.load_in_4bit else 8


def choose(
    dtype: str, weights: str, stored: "PreTrainedConfig", *, accelerated: bool, borrowed: bool = False
) -> Precision:
    """Read `--dtype` and `--weights` for a model whose config is `stored`.

    `accelerated`: there is a GPU; `borrowed`: at times, and not now. Raises ModelError for what cannot be done here.
    """
    import torch

    auto = (getattr(stored, "dtype", None) if accelerated else None) or torch.float32
    named = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    compute = auto if dtype == "auto" else named[dtype]
    if weights == "full":
        return Precision(compute, compute)
    if borrowed:
        raise ModelError(
            f"--weights {weights} is not for ZeroGPU, which lends its GPU only for an answer: leave it out."
        )
    if accelerated:
        return Precision(compute, compute, library=_library(weights, compute))
    if weights == "4bit":
        raise ModelError("--weights 4bit is for GPUs, and there is none here. --weights int8 is for this machine too.")
    # Most models are stored so, and of others the first 8 bits decide which of 255 numbers a weight becomes.
    return Precision(torch.bfloat16, compute, int8=True)


def _library(weights: str, compute: "torch.dtype") -> "BitsAndBytesConfig":
    from transformers import BitsAndBytesConfig

    if find_spec("bitsandbytes") is None:
        raise ModelError(f"--weights {weights} needs bitsandbytes on a GPU: `{INSTALL}`, or leave --weights out.")
    make: Any = BitsAndBytesConfig  # its types are only in its text
    if weights == "int8":
        return make(load_in_8bit=True)  # type: ignore[no-any-return]
    return make(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=compute)  # type: ignore[no-any-return]
