"""A language model of a few thousand random numbers: it says nothing, in a fraction of a second, always the same."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from tests.tokenizers import byte_level_bpe

CONTEXT_TOKENS = 512


def tiny_model(tokenizer: PreTrainedTokenizerBase, seed: int = 0) -> LlamaForCausalLM:
    """A random Llama for `tokenizer`; one seed gives one model. Leaves torch's global random state as it was."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_TOKENS,
        initializer_range=0.2,  # wide, so that its answers are not one token for ever
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


def reciting_model(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> LlamaForCausalLM:
    """Says `ids[1:]` after a prompt that ends with `ids[0]`. No id twice: each one is known by the one before it."""
    assert len(ids) == len(set(ids)) <= 32, "a dimension for each"
    model = tiny_model(tokenizer)
    with torch.no_grad():
        for layer in model.model.layers:  # nothing is added to what the last token says
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.lm_head.weight.mul_(0.01)  # the other words stay possible, as of any model
        model.model.embed_tokens.weight[list(ids)] = 0
        for place, (token, following) in enumerate(pairwise(ids)):
            model.model.embed_tokens.weight[token, place] = model.lm_head.weight[following, place] = 1
    return model


def tiny_folder(
    path: Path, tokenizer: PreTrainedTokenizerBase | None = None, chat_template: str | None = None, seed: int = 0
) -> Path:
    """Save a tiny model, its tokenizer and a chat template into the folder `path`, as from_pretrained reads them."""
    tokenizer = tokenizer or byte_level_bpe()
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    tiny_model(tokenizer, seed).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path
