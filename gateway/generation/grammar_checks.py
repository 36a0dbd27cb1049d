"""Whether a grammar can be followed, before its request goes to the engine: a bad one is the client's 400."""

from __future__ import annotations

from collections import OrderedDict

from gateway.model.tokenize import Asker
from gateway.model.work_pool import WorkPool, in_one_step
from gateway.protocol.errors import InvalidRequestError
from gateway.protocol.output.output_format import AskedGrammar
from schedcore.api.types import LARK_GRAMMARS, EngineInfo, Grammar, GrammarKind
from schedcore.grammar.source import find_problem

MAX_REMEMBERED = 256  # grammars
_COST = 8  # a character of a grammar takes as long as so many of a text


class GrammarChecks:
    """On the pool's threads, in turns for tenants; what was found is remembered."""

    def __init__(self, pool: WorkPool) -> None:
        self._pool = pool
        self._problems: OrderedDict[Grammar, str | None] = OrderedDict()

    async def check(self, asked: AskedGrammar, info: EngineInfo, asker: Asker) -> None:
        """Raises InvalidRequestError, QueueFullError."""
        if not info.has_grammars:
            raise InvalidRequestError(
                f"'{asked.param}' is not supported: this model's tokenizer follows no grammar.",
                param=asked.param,
                code="unsupported",
            )
        if asked.grammar.kind is GrammarKind.LARK and LARK_GRAMMARS in info.missing:
            raise InvalidRequestError(
                f"'{asked.param}' is not supported: this server's engine has no {LARK_GRAMMARS}.",
                param=asked.param,
                code="unsupported",
            )
        if asked.grammar.before and LARK_GRAMMARS in info.missing:
            raise InvalidRequestError(
                f"'{asked.param}' is not supported while the model thinks first: this server's engine has no "
                f"{LARK_GRAMMARS}. Switch thinking off ('reasoning_effort' none), or ask for no form.",
                param=asked.param,
                code="unsupported",
            )
        problem = await self._problem(asked.grammar, asker)
        if problem is not None:
            raise InvalidRequestError(
                f"'{asked.param}' cannot be followed: {problem}.", param=asked.param, code="invalid_grammar"
            )

    async def _problem(self, grammar: Grammar, asker: Asker) -> str | None:
        if grammar in self._problems:
            self._problems.move_to_end(grammar)
            return self._problems[grammar]
        work, size = in_one_step(find_problem, grammar), _COST * len(grammar.text)
        problem = await self._pool.run(work, size, asker.tenant, is_background=asker.is_background)
        self._problems[grammar] = problem
        if len(self._problems) > MAX_REMEMBERED:
            self._problems.popitem(last=False)
        return problem
