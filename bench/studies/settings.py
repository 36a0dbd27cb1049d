"""Settings of the engine that a study compares, as data.

A setting that this build of the core does not know is left out of the study, and the study says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from bench.studies.document import Column, Table
from schedcore.simulation.engine import SimulatedEngine

Options = Mapping[str, Any]

SERVED: Options = {
    "max_num_seqs": 256,
    "max_num_batched_tokens": 2048,
    "max_wait_ms": 20_000,
    "starving_turn_ms": 2000,
    "max_decode_step_ms": 0,
}  # as `hocket serve` sets them

ENGINE_FIELDS = {f.name for f in fields(SimulatedEngine)}


@dataclass(frozen=True, slots=True)
class Setting:
    """`options`: fields of SimulatedEngine or of SchedulerConfig that differ from the study's engine."""

    name: str  # in tables
    policy: str
    options: Options = field(default_factory=dict)
    note: str = ""  # what it stands for, and how far

    def engine(self, base: SimulatedEngine) -> SimulatedEngine:
        """Raises ValueError if the core knows no such policy or option."""
        of_engine = {name: value for name, value in self.options.items() if name in ENGINE_FIELDS}
        others = {name: value for name, value in self.options.items() if name not in ENGINE_FIELDS}
        engine = replace(base, **of_engine).with_policy(self.policy, **others)
        engine.scheduler_config(1)
        return engine


def supported(settings: Sequence[Setting], base: SimulatedEngine) -> tuple[list[Setting], list[str]]:
    """Those that this core can run, and a sentence about each of the others."""
    known, left_out = [], []
    for setting in settings:
        try:
            setting.engine(base)
        except ValueError as error:
            unknown = unknown_options(setting, base)
            reason = f"no option {', '.join(unknown)}" if unknown else str(error)
            left_out.append(f"{setting.name}: {reason}")
        else:
            known.append(setting)
    return known, left_out


def unknown_options(setting: Setting, base: SimulatedEngine) -> list[str]:
    """Fields that neither the engine nor the scheduler's configuration has."""
    unknown = []
    for name, value in setting.options.items():
        try:
            Setting(setting.name, base.policy, {name: value}).engine(replace(base, options={}))
        except ValueError as error:
            if str(error).startswith("the scheduler has no such settings"):
                unknown.append(name)
    return unknown


def setting_table(settings: Sequence[Setting]) -> Table:
    """What each of them is; one that stands there twice is named once."""
    rows = dict.fromkeys((s.name, s.policy, options_text(s.options), s.note) for s in settings)
    return Table("Settings", [Column("setting"), Column("policy"), Column("options"), Column("what it is")], [*rows])


def options_text(options: Options) -> str:
    def value(option: Any) -> str:
        is_size = isinstance(option, int) and option >= 2**30
        return f"{option / 2**30:g} GiB" if is_size else str(option).lower()

    return ", ".join(f"{name}={value(option)}" for name, option in options.items()) or "–"
