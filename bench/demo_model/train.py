"""Trains the demo model on generated conversations: tokenizer first, then the network; resumes where it stopped.

    python -m bench.demo_model.train --steps 1800 --work bench/results/demo_model --out worker/demo_model
    python -m bench.demo_model.train --start worker/demo_model --rate 0.4 --steps 600     goes on from given weights

Loss is taken on the assistant's tokens only. The data never repeats: each step draws its conversations from a seed of
its own. Processes of one thread share a step, gradients averaged: on a busy machine two are several times faster
than one process of two threads, which wait for each other in every operation.
"""

import argparse
import copy
import ctypes
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from bench.demo_model import model_files
from bench.demo_model.corpus import Conversation, training_conversation
from bench.demo_model.network import Decoder, Shape
from bench.demo_model.tools import tool_conversation

# row length -> (share of steps, rows per process, turns of one conversation); long rows teach long chats
_BATCHES = {
    128: (0.35, 20, (1, 2)),
    256: (0.40, 10, (2, 6)),
    512: (0.18, 5, (4, 12)),
    1024: (0.06, 2, (10, 30)),
    2048: (0.01, 1, (25, 70)),
}
_TOOLS_SHARE = 0.3  # of the conversations of rows that have room for one; these have fewer turns
_TOOLS_ROOM = 256
_TURNS_PER_TOOLS_TURN = 4
_AVERAGED_STEPS = 50  # saved weights are a running mean over about so many steps: as good as a lower learning rate
_MATRIX_LEARNING_RATE = 0.02
_VECTOR_LEARNING_RATE = 0.003


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalised updates (Jordan et al. 2024), for matrices; in float32, which PyTorch's is not."""

    def __init__(self, params: Sequence[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for param in group["params"]:
                by_shape.setdefault(param.shape, []).append(param)
            for params in by_shape.values():
                self._update(params, group)

    def _update(self, params: list[Tensor], group: dict[str, float]) -> None:
        directions = []
        for param in params:
            assert param.grad is not None
            momentum = self.state[param].setdefault("momentum", torch.zeros_like(param))
            momentum.lerp_(param.grad, 1 - group["momentum"])
            directions.append(param.grad.lerp(momentum, group["momentum"]))
        updates = orthogonalised(torch.stack(directions))
        scale = max(1, params[0].shape[0] / params[0].shape[1]) ** 0.5
        for param, update in zip(params, updates, strict=True):
            param.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"] * scale)


def orthogonalised(matrices: Tensor) -> Tensor:
    """The nearest semi-orthogonal matrices, roughly, by five Newton-Schulz steps; [N, rows, columns]."""
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if is_tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if is_tall else x


def rows(rng: random.Random, tokenizer: Tokenizer, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Packed rows of one step: tokens, document numbers, whether the next token is the assistant's; each [B, L]."""
    _, num_rows, (fewest, most) = _BATCHES[length]
    packed = [_row(rng, tokenizer, length + 1, fewest, most) for _ in range(num_rows)]
    tokens, documents, is_reply = (torch.tensor(part) for part in zip(*packed, strict=True))
    return tokens, documents, is_reply.bool()


def _row(rng: random.Random, tokenizer: Tokenizer, length: int, fewest: int, most: int) -> tuple[list[int], ...]:
    assistant, end = tokenizer.token_to_id(model_files.ASSISTANT), tokenizer.token_to_id(model_files.END)
    tokens: list[int] = []
    documents: list[int] = []
    is_reply: list[int] = []
    while len(tokens) < length:
        conversation = _conversation(rng, rng.randint(fewest, most), has_room=length > _TOOLS_ROOM)
        ids = tokenizer.encode(model_files.render(conversation.messages, conversation.tools)).ids
        documents += [documents[-1] + 1 if documents else 0] * len(ids)
        tokens += ids
        speaking = 0
        for token in ids:
            is_reply.append(speaking)
            speaking = 1 if token == assistant else 0 if token == end else speaking
    return tokens[:length], documents[:length], is_reply[:length]


def _conversation(rng: random.Random, num_turns: int, *, has_room: bool) -> Conversation:
    if has_room and rng.random() < _TOOLS_SHARE:
        return tool_conversation(rng, -(-num_turns // _TURNS_PER_TOOLS_TURN))
    return training_conversation(rng, num_turns)


def loss_of(network: Decoder, tokens: Tensor, documents: Tensor, is_reply: Tensor) -> Tensor:
    wanted = is_reply[:, 1:]
    hidden = network(tokens[:, :-1], documents[:, :-1])
    return F.cross_entropy(network.logits(hidden[wanted]), tokens[:, 1:][wanted])


def learning_rate_factor(step: int, num_steps: int) -> float:
    """Up over the first 60 steps, flat to 45 % of the run, then straight down to zero."""
    return min(1.0, (step + 1) / 60, (1 - step / num_steps) / 0.55)


class Run:
    """Network, optimizers and step number, kept in one file so that the run can be resumed.

    start: a checkpoint whose weights a new run begins with; rate: share of the full learning rate.
    """

    def __init__(self, work: Path, start: Path | None = None, rate: float = 1.0) -> None:
        self.file = work / "run.pt"
        self.step = 0
        self.rate = rate
        self.network = Decoder(Shape())
        if start is not None:
            weights = load_file(start / "model.safetensors")
            self.network.load_state_dict({name.removeprefix("model."): w.float() for name, w in weights.items()})
        matrices = [p for p in self.network.layers.parameters() if p.ndim == 2]
        others = [p for n, p in self.network.named_parameters() if p.ndim == 1 or n.startswith("embed")]
        self.optimizers = (
            Muon(matrices, _MATRIX_LEARNING_RATE),
            torch.optim.AdamW(others, _VECTOR_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0),
        )
        self.averaged = copy.deepcopy(self.network)
        if self.file.exists():
            state = torch.load(self.file)
            self.step = state["step"]
            self.network.load_state_dict(state["network"])
            self.averaged.load_state_dict(state["averaged"])
            for optimizer, optimizer_state in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(optimizer_state)

    def save(self) -> None:
        state = {
            "step": self.step,
            "network": self.network.state_dict(),
            "averaged": self.averaged.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }
        partial = self.file.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self.file)

    def advance(self, tokenizer: Tokenizer, num_steps: int) -> tuple[float, int]:
        """One step; returns this process's loss and the number of tokens that all processes saw."""
        shares = [share for share, _, _ in _BATCHES.values()]
        length = random.Random(self.step).choices(list(_BATCHES), shares)[0]
        batch = rows(random.Random(f"{self.step}/{dist.get_rank()}"), tokenizer, length)
        loss = loss_of(self.network, *batch)
        loss.backward()
        average_gradients(list(self.network.parameters()))
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        factor = self.rate * learning_rate_factor(self.step, num_steps)
        for optimizer, rate in zip(self.optimizers, (_MATRIX_LEARNING_RATE, _VECTOR_LEARNING_RATE), strict=True):
            optimizer.param_groups[0]["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        self._average()
        return loss.item(), batch[0].numel() * dist.get_world_size()

    @torch.no_grad()
    def _average(self) -> None:
        weight = max(1 / self.step, 1 / _AVERAGED_STEPS)
        for mean, param in zip(self.averaged.parameters(), self.network.parameters(), strict=True):
            mean.lerp_(param, weight)


def average_gradients(params: Sequence[Tensor]) -> None:
    """Replaces each process's gradients by their mean over the processes."""
    flat = torch.cat([param.grad.flatten() for param in params if param.grad is not None])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for param, grad in zip(params, torch.split(flat, [param.numel() for param in params]), strict=True):
        param.grad = grad.view_as(param)


def tokenizer_texts(num_conversations: int) -> Iterator[str]:
    rng = random.Random("tokenizer")
    for _ in range(num_conversations):
        yield from (message["content"] for message in training_conversation(rng, 4).messages)


def keep_freed_memory() -> None:
    """Tells glibc not to give memory back: faulting it in again each step costs more than the arithmetic."""
    libc = ctypes.CDLL(None)
    for parameter, value in ((-4, 0), (-1, 2**31 - 1), (-2, 2**28)):  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD
        libc.mallopt(parameter, value)


def train(rank: int, rendezvous: str, args: argparse.Namespace) -> None:
    """The life of one of the processes; the first one prints and saves."""
    keep_freed_memory()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=args.processes)
    tokenizer = Tokenizer.from_file(str(args.work / "tokenizer.json"))
    run = Run(args.work, args.start, args.rate)
    dist.barrier()
    started, mean, seen = time.monotonic(), 0.0, 0
    while run.step < args.steps:
        loss, num_tokens = run.advance(tokenizer, args.steps)
        mean, seen = loss if not mean else 0.95 * mean + 0.05 * loss, seen + num_tokens
        if rank == 0 and run.step % 25 == 0:
            speed = seen / (time.monotonic() - started)
            print(f"step {run.step}/{args.steps}  loss {mean:.4f}  {speed:.0f} tokens/s", flush=True)
        if rank == 0 and (run.step % 100 == 0 or run.step == args.steps):
            run.save()
            model_files.save(args.out, run.averaged, tokenizer)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1800)
    parser.add_argument("--work", type=Path, default=Path("bench/results/demo_model"), help="where the run is kept")
    parser.add_argument("--out", type=Path, default=Path("worker/demo_model"), help="where the checkpoint is written")
    parser.add_argument("--start", type=Path, help="a checkpoint to go on from, with its tokenizer")
    parser.add_argument("--rate", type=float, default=1.0, help="share of the full learning rate")
    parser.add_argument("--processes", type=int, default=2, help="of one thread each; a step is as many batches")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    if args.start is not None:
        shutil.copy(args.start / "tokenizer.json", args.work)
    elif not (args.work / "tokenizer.json").exists():
        tokenizer = model_files.train_tokenizer(tokenizer_texts(30_000), Shape().vocab_size)
        tokenizer.save(str(args.work / "tokenizer.json"))
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, args=(os.path.join(folder, "rendezvous"), args), nprocs=args.processes)  # noqa: PTH118


if __name__ == "__main__":
    main()
