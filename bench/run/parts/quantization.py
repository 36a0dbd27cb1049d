"""What fewer bits do to a model's predictions, of weights and of the cache, beside float32.

    python -m bench.run.parts.quantization [--models models] [15m 100m 0.5b]

For the demo model on held-out conversations of its corpus, perplexity included; for random models on random tokens,
as they are and with outliers as large models have them (with_outliers()).
error: of the logits, |difference| / |logits|; KL: of the next token's distribution from float32's, nats; same token:
how often the likeliest one is the same.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from bench.lib.model.random_model import SHAPES, ensure_checkpoint
from bench.lib.table import render
from worker import ops
from worker.batch.int8_cache import vector_size
from worker.batch.paged_pool import PagedPool, StepBatch
from worker.models.decoder import DecoderModel
from worker.models.loader import load_model
from worker.models.model_config import read_model_config

ROOT = Path(__file__).resolve().parents[3]
DEMO = ROOT / "worker" / "demo_model"
SEQUENCE_LEN = 256
KINDS = (  # dtype, quantization
    ("float32", None), ("bfloat16", None), ("bfloat16", "int8-weights"), ("bfloat16", "int8"), ("bfloat16", "int4"),
)  # fmt: skip
CACHES = (torch.bfloat16, torch.int8)
OUTLIER_CHANNELS, OUTLIER_FACTOR = 4, 16.0  # of the input of attention, in every layer
KEY_FACTOR = 8.0  # by which two elements of each head's keys are larger


@dataclass(frozen=True)
class Predictions:
    """Over all positions of some texts."""

    logits: Tensor  # float32 [n, vocab_size]
    next_tokens: Tensor  # [n]

    @property
    def perplexity(self) -> float:
        return float(torch.nn.functional.cross_entropy(self.logits, self.next_tokens).exp())

    def row(self, name: str, exact: Predictions, is_text: bool) -> list[str]:
        error = float((self.logits - exact.logits).norm() / exact.logits.norm())
        mine, theirs = self.logits.log_softmax(-1), exact.logits.log_softmax(-1)
        divergence = float((theirs.exp() * (theirs - mine)).sum(-1).mean())
        same = float((self.logits.argmax(-1) == exact.logits.argmax(-1)).float().mean())
        return [name, f"{error:.2%}", f"{divergence:.2e}", f"{same:.1%}", f"{self.perplexity:.4f}" if is_text else ""]


def logits_of(model: DecoderModel, tokens: Tensor, cache: torch.dtype = torch.float32) -> Tensor:
    """[n, vocab_size] of one sequence in a pool of its own; cache: in float32 only the weights differ."""
    config, n = model.config, len(tokens)
    table = torch.arange(2 * config.num_layers, dtype=torch.int32).view(1, config.num_layers, 2, 1)
    size = vector_size(config.num_kv_heads, config.head_dim, cache)
    data = torch.zeros(2 * config.num_layers, 1, n, size, dtype=cache)
    batch = StepBatch(
        token_ids=tokens.to(torch.int32),
        positions=torch.arange(n, dtype=torch.int32),
        token_row=torch.zeros(n, dtype=torch.int32),
        query_start=torch.tensor([0, n], dtype=torch.int32),
        seq_lens=torch.tensor([n], dtype=torch.int32),
        rows=torch.zeros(1, dtype=torch.int32),
        sample_tokens=torch.arange(n),
        max_query_len=n,
        max_seq_len=n,
    )
    with torch.inference_mode():
        pool = PagedPool(data, table, config.num_kv_heads, config.head_dim)
        return model.compute_logits(model.forward(batch, pool))


def predict(
    folder: Path, dtype: str, quantization: str | None, texts: list[Tensor], cache: torch.dtype = torch.float32
) -> Predictions:
    model, _ = load_model(folder, read_model_config(folder), dtype=dtype, quantization=quantization)
    logits = torch.cat([logits_of(model, text, cache)[:-1] for text in texts])
    return Predictions(logits, torch.cat([text[1:] for text in texts]).long())


def held_out_texts(questions_per_topic: int = 10) -> list[Tensor]:
    from bench.demo_model import model_files
    from bench.demo_model.corpus import TOPICS
    from bench.demo_model.evaluate import questions

    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    texts = []
    for topic in TOPICS:
        for conversation, example in questions(topic, questions_per_topic):
            reply = {"role": "assistant", "content": example.replies[0]}
            text = model_files.render([*conversation.messages, reply])
            texts.append(torch.tensor(tokenizer.encode(text, add_special_tokens=False).ids))
    return texts


def random_texts(vocab_size: int, count: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(vocab_size, (SEQUENCE_LEN,), generator=generator) for _ in range(count)]


def rows(name: str, folder: Path, texts: list[Tensor], *, is_text: bool) -> Iterator[list[str]]:
    exact: Predictions | None = None
    for dtype, quantization in KINDS:
        predictions = predict(folder, dtype, quantization, texts)
        exact = exact or predictions
        yield predictions.row(f"{name}, {quantization or dtype}", exact, is_text)
    assert exact is not None
    for cache in CACHES:
        predictions = predict(folder, "float32", None, texts, cache)
        yield predictions.row(f"{name}, cache in {str(cache).removeprefix('torch.')}", exact, is_text)


def with_outliers(folder: Path, to: Path) -> Path:
    """The same function of its tokens, but a few channels reach attention far larger than the others, and a few
    elements of each head's keys are far larger: what they are multiplied with is as much smaller."""
    config = read_model_config(folder)
    shutil.copytree(folder, to)
    tensors = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    half = config.head_dim // 2
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        q, k, v = (tensors[f"{prefix}self_attn.{name}_proj.weight"] for name in "qkv")
        channels = torch.randperm(config.hidden_size, generator=generator)[:OUTLIER_CHANNELS]
        tensors[f"{prefix}input_layernorm.weight"][channels] *= OUTLIER_FACTOR
        for weight in (q, k, v):
            weight[:, channels] /= OUTLIER_FACTOR
        pair = torch.randperm(half, generator=generator)[:1]
        rotated = torch.cat((pair, pair + half))  # against each other: both change alike
        k.view(config.num_kv_heads, config.head_dim, -1)[:, rotated] *= KEY_FACTOR
        q.view(config.num_heads, config.head_dim, -1)[:, rotated] /= KEY_FACTOR
    save_file(tensors, to / "model.safetensors")
    return to


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", default=[], metavar="SHAPE", help=f"random models: {', '.join(SHAPES)}")
    parser.add_argument("--models", type=Path, default=Path("models"), help="their folder (default: models)")
    args = parser.parse_args()
    print(f"{ops.backend(torch.device('cpu'))}\n")
    table = list(rows("demo", DEMO, held_out_texts(), is_text=True))
    for shape in args.shapes:
        folder = ensure_checkpoint(shape, args.models)
        texts = random_texts(SHAPES[shape].vocab_size)
        table += rows(shape, folder, texts, is_text=False)
        with tempfile.TemporaryDirectory() as temporary:
            outliers = with_outliers(folder, Path(temporary) / shape)
            table += rows(f"{shape} with outliers", outliers, texts, is_text=False)
    print(render(["model, weights", "error", "KL", "same token", "perplexity"], table))


if __name__ == "__main__":
    main()
