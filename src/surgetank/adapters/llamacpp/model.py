"""A tiny random-weight llama model as a GGUF file: a real engine needs one, and no download does.

Rule: the same arguments give the same bytes, and a half-written file is never seen under its name.

The words are clean and the length is chosen in spite of random weights: component 0 of the residual
stream is held constant (its embedding is a constant, and no layer writes to it), so column 0 of the
output head is a real bias per token. Whole words get 0, all else -30, the end of sequence what the
caller says. Size is the dial for the service rate; it does not change what the server does.
"""

from __future__ import annotations

import math
import os
import string
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from surgetank.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    Matrix = np.ndarray[Any, np.dtype[np.float32]]

_PROSE: Final = (
    "the of and a to in is you that it he was for on are as with his they at be this have from or "
    "one had by word but not what all were we when your can said there use an each which she do "
    "how their if will up other about out many then them these so some her would make like him "
    "into time has look two more write go see number no way could people my than first water been "
    "call who oil its now find long down day did get come made may part user system assistant "
    "burst queue token load scale pool warm cold request stream"
)
WORDS: Final = tuple(_PROSE.split())
"""What the model says, and what it reads at one token a word."""

_SPECIAL: Final = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")
_BOS, _EOS, _UNK, _EOT = 1, 2, 0, 4
_CHARACTERS: Final = string.ascii_letters + string.digits + string.punctuation + "\n"
_CHAT_TEMPLATE: Final = (
    "{% for m in messages %}"
    "{{'<|im_start|>'+m['role']+'\n'+m['content']+'<|im_end|>\n'}}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{'<|im_start|>assistant\n'}}{% endif %}"
)
_CONSTANT: Final = 3.0  # the held component, before the norm divides it by the vector's RMS
_RMS: Final = 1.5  # that RMS at the last layer, near enough for a bias
_SUPPRESSED: Final = -30.0
_WORD_SPREAD: Final = 2.0  # standard deviation of a word's logit, whatever the hidden size
NEVER_ENDS: Final = -20.0


@dataclass(frozen=True, slots=True)
class _Shape:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    feed_forward: int
    context: int


def write_tiny_gguf(
    path: str | Path,
    *,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    feed_forward: int | None = None,
    context: int = 8192,
    eos_logit: float = NEVER_ENDS,
    seed: int = 0,
) -> int:
    """Write the model to `path` and return its size in bytes.

    `context` is the trained context in tokens; `feed_forward` defaults to 2.75 times `hidden`.
    `eos_logit` is the logit of the end of sequence beside words spread by 2 around 0: -20 never
    ends, about 4 ends after some ten words, 12 at once. Bytes are a function of the arguments.
    Raises InputError when the `demo` extra is absent or the sizes do not divide.
    """
    if hidden % heads or heads % kv_heads or (hidden // heads) % 2:
        raise InputError(
            f"hidden = {hidden}, heads = {heads}, kv_heads = {kv_heads}: hidden must be a multiple "
            "of heads by an even number, and heads a multiple of kv_heads"
        )
    try:
        import gguf  # noqa: PLC0415  (an extra: needed only here)
        import numpy as np  # noqa: PLC0415  (the same)
    except ImportError as error:
        raise InputError(missing_extra(error)) from error

    target = Path(path)
    shape = _Shape(hidden, layers, heads, kv_heads, feed_forward or hidden * 11 // 4, context)
    tokens, types, scores = _vocabulary(gguf.TokenType)
    rng = np.random.default_rng(seed)
    handle, draft = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(handle)
    try:
        writer = gguf.GGUFWriter(draft, "llama")
        _describe(writer, shape, len(tokens))
        writer.add_token_list(tokens)
        writer.add_token_scores(scores)
        writer.add_token_types(types)

        def put(name: str, weights: Matrix) -> None:
            writer.add_tensor(name, np.ascontiguousarray(weights, dtype=np.float32))

        def normal(rows: int, columns: int, scale: float = 1.0) -> Matrix:
            drawn = rng.standard_normal((rows, columns), dtype=np.float32)
            return drawn * np.float32(scale / math.sqrt(columns))

        _put_ends(put, normal, tokens, hidden, eos_logit)
        for layer in range(layers):
            _put_layer(put, normal, f"blk.{layer}.", shape)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        Path(draft).replace(target)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    return target.stat().st_size


def missing_extra(error: ImportError) -> str:
    """One line naming the extra that brings the absent package."""
    return f"{error.name} is not installed: pip install 'surgetank[demo]'"


def _vocabulary(kind: Any) -> tuple[list[str], list[int], list[float]]:
    """Byte fallback, single characters, and each word with its prefixes so that merges reach it."""
    tokens = list(_SPECIAL)
    types = [kind.UNKNOWN] + [kind.CONTROL] * (len(_SPECIAL) - 1)
    scores = [0.0] * len(_SPECIAL)
    for byte in range(256):
        tokens.append(f"<0x{byte:02X}>")
        types.append(kind.BYTE)
        scores.append(0.0)
    seen = set(tokens)
    pieces: list[tuple[str, float]] = [("▁", -1e3), *((c, -1e3) for c in _CHARACTERS)]
    pieces += [(f"▁{w}"[:end], 0.0) for w in WORDS for end in range(2, len(w) + 2)]
    for rank, (piece, score) in enumerate(pieces):
        if piece not in seen:
            seen.add(piece)
            tokens.append(piece)
            types.append(kind.NORMAL)
            scores.append(score or -float(rank))
    return tokens, types, scores


def _describe(writer: Any, shape: _Shape, vocabulary: int) -> None:
    writer.add_name("surgetank-tiny-random")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.hidden // shape.heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(vocabulary)
    writer.add_file_type(0)  # all 32-bit floats
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_bos_token_id(_BOS)
    writer.add_eos_token_id(_EOS)
    writer.add_unk_token_id(_UNK)
    writer.add_eot_token_id(_EOT)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(True)
    writer.add_chat_template(_CHAT_TEMPLATE)


def _put_ends(
    put: Callable[[str, Any], None],
    normal: Callable[..., Any],
    tokens: list[str],
    hidden: int,
    eos_logit: float,
) -> None:
    """Embedding and output head, with the constant component and the bias it carries."""
    embedding = normal(len(tokens), hidden, math.sqrt(hidden))
    embedding[:, 0] = _CONSTANT
    put("token_embd.weight", embedding)
    words = {f"▁{word}" for word in WORDS}
    head = normal(len(tokens), hidden, _WORD_SPREAD)
    head[_EOS] = 0.0
    bias = [0.0 if token in words else _SUPPRESSED for token in tokens]
    bias[_EOS] = eos_logit
    for token, value in enumerate(bias):
        head[token, 0] = value / (_CONSTANT / _RMS)
    put("output_norm.weight", head[0] * 0 + 1)
    put("output.weight", head)


def _put_layer(
    put: Callable[[str, Any], None], normal: Callable[..., Any], prefix: str, shape: _Shape
) -> None:
    """One block; what it writes back to the residual stream is small and leaves component 0."""
    hidden, feed = shape.hidden, shape.feed_forward
    narrow = hidden // shape.heads * shape.kv_heads
    ones = normal(1, hidden)[0] * 0 + 1
    put(prefix + "attn_norm.weight", ones)
    put(prefix + "ffn_norm.weight", ones)
    put(prefix + "attn_q.weight", normal(hidden, hidden))
    put(prefix + "attn_k.weight", normal(narrow, hidden))
    put(prefix + "attn_v.weight", normal(narrow, hidden))
    put(prefix + "ffn_gate.weight", normal(feed, hidden))
    put(prefix + "ffn_up.weight", normal(feed, hidden))
    for name, columns in (("attn_output.weight", hidden), ("ffn_down.weight", feed)):
        back = normal(hidden, columns, 0.3)
        back[0] = 0.0
        put(prefix + name, back)
