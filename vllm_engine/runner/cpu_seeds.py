"""Seeds on vLLM's CPU backend, where a prompt computed in chunks brings a seeded request down.

vLLM's runner samples for every request of a step and takes back the draw of one whose prompt goes on, by the
generator's offset; generators on CPU have none, and it raises (0.32). Generators that can go back one draw mend that:
each remembers its state before the step's draws.
"""

from __future__ import annotations

from typing import Any

import torch


class RewindableGenerator(torch.Generator):
    """set_offset(get_offset() - any) goes back to the last note()."""

    _noted: torch.Tensor

    @classmethod
    def of(cls, generator: torch.Generator) -> RewindableGenerator:
        made = cls(device=generator.device)
        made.set_state(generator.get_state())
        return made

    def note(self) -> None:
        self._noted = self.get_state()

    def get_offset(self) -> int:
        return 0

    def set_offset(self, offset: int) -> torch.Generator:
        self.set_state(self._noted)
        return self


def mend_seeds(runner: Any) -> None:
    """Of a model runner of vLLM's in this process, on CPU. Changes nothing where it is not as in 0.32."""
    sample = getattr(runner, "_sample", None)
    if sample is None or not hasattr(runner, "input_batch") or not hasattr(runner, "requests"):
        return

    def noting(*args: Any, **kwargs: Any) -> Any:
        batch = runner.input_batch
        for index, generator in batch.generators.items():
            if not isinstance(generator, RewindableGenerator):
                generator = RewindableGenerator.of(generator)
                batch.generators[index] = runner.requests[batch.req_ids[index]].generator = generator
            generator.note()
        return sample(*args, **kwargs)

    runner._sample = noting
