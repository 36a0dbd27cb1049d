"""Logits to token ids, for a whole batch at once.

Per request: bias, forbidden stop tokens and penalties, what it or its grammar forbids, then temperature, then min-p,
top-k, top-p. Log-probabilities are the model's own, before any of these. A greedy request gets the same tokens alone
and in any company.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from schedcore._core import NO_TOKEN, BatchPlan
from schedcore.api.types import EngineRequest, TokenLogprobs
from worker import ops
from worker.batch.staging import Parcel, to_device
from worker.grammars.followed_rows import FollowedRows
from worker.grammars.grammars import Grammars
from worker.grammars.masks import allow_only
from worker.ops.draw import DrawParameters
from worker.sampling.adjust import AdjustedRow, adjust
from worker.sampling.forced_rows import ForcedRows
from worker.sampling.guessed_rows import GuessedRows
from worker.sampling.logprobs import named_logprobs, token_logprobs
from worker.sampling.request_state import Needs, RequestState, is_plain
from worker.sampling.row_table import RowTable

TokenIds = npt.NDArray[np.int32]
_CPU = torch.device("cpu")
_NOTHING_LEFT = (
    "no token is left to continue with: allowed_token_ids, bad_words, min_tokens and the form of the answer exclude all"
)


class PlanNeeds(NamedTuple):
    """Of a plan where not every token is plainly greedy; the same while the same requests sample in the same rows."""

    of_tokens: npt.NDArray[np.uint8]  # of each token that is sampled, as Needs
    any: int  # of them
    request_ids: npt.NDArray[np.uint64]  # of each token
    rows: npt.NDArray[np.int32]  # likewise
    followed: FollowedRows | None  # those with a grammar

    @property
    def corrects_greedy(self) -> bool:
        """Sampler.correct() is all that these tokens need behind argmax."""
        return self.any == Needs.GRAMMAR and self.followed is not None and self.followed.are_greedy


class Sampler:
    def __init__(
        self,
        max_num_seqs: int,
        vocab_size: int,
        seed: int = 0,
        grammars: Grammars | None = None,
        device: torch.device = _CPU,
    ) -> None:
        """seed: for requests that bring none. grammars: None: no request has one. device: of the logits."""
        self._vocab_size, self._seed = vocab_size, seed
        self._grammars = grammars
        # On a device all masks go first: its copies take longer than masks.
        self._corrects_greedy = ops.takes_addresses_on(device)
        self._states: dict[int, RequestState] = {}  # of requests that are not plainly greedy
        self._table = RowTable(max_num_seqs)
        self._last_plan: tuple[bytes, ...] = ()  # who samples where in it; its needs, while they are sure
        self._last_needs: PlanNeeds | None = None
        self._problems: dict[int, str] = {}

    def add(self, request: EngineRequest) -> None:
        self._last_plan = ()
        if not is_plain(request):
            grammars = self._grammars if request.grammar is not None else None
            matcher = None if grammars is None else grammars.matcher(request.request_id)
            state = RequestState(request, self._vocab_size, self._seed, matcher)
            self._states[request.request_id] = state
            if matcher is not None and grammars is not None and grammars.names_forced:
                matcher.request_id = request.request_id
                matcher.names_forced = not state.needs & ~Needs.FORCED

    def remove(self, request_id: int) -> None:
        self._last_plan = ()
        self._states.pop(request_id, None)
        self._table.forget(request_id)

    @property
    def has_requests(self) -> bool:
        """Whether any of those that were added is of interest here."""
        return bool(self._states)

    def forced_rows(self, plan: BatchPlan) -> ForcedRows | None:
        """To be asked before anything else of a plan. None where all of its tokens are to be chosen."""
        spans = [] if self._grammars is None else self._grammars.follow_forced(plan)
        return ForcedRows(plan, spans) if any(span.num_forced for span in spans) else None

    def needs(self, plan: BatchPlan) -> PlanNeeds | None:
        """None where argmax is all that this plan's tokens need."""
        if not self._states:
            return None
        who = plan.request_ids.tobytes(), plan.rows.tobytes(), plan.sample_seqs.tobytes()
        if who != self._last_plan:
            self._last_plan, self._last_needs = who, self._find_needs(plan)
        return self._last_needs

    def _find_needs(self, plan: BatchPlan) -> PlanNeeds | None:
        rows, request_ids = plan.rows[plan.sample_seqs], plan.request_ids[plan.sample_seqs]
        self._table.sync(request_ids, rows, self._states)
        of_tokens = self._table.needs[rows]
        any_needs = int(np.bitwise_or.reduce(of_tokens)) if len(of_tokens) else 0
        if not any_needs:
            return None
        followed = self._followed(of_tokens, request_ids) if any_needs & Needs.GRAMMAR else None
        return PlanNeeds(of_tokens, any_needs, request_ids, rows, followed)

    def drawing(self, plan: BatchPlan, needs: PlanNeeds | None) -> Parcel | None:
        """What sample() takes, for a device that draws tokens; None where no token of the plan is random."""
        if needs is None or not needs.any & Needs.RANDOM:
            return None
        return self._parameters(needs.rows, self._num_output_tokens(plan, needs.rows)).parcel()

    def sample(
        self, logits: Tensor, plan: BatchPlan, drawing: Parcel | None = None, plan_needs: PlanNeeds | None = None
    ) -> tuple[TokenIds, dict[int, TokenLogprobs] | None]:
        """logits float32 [len(plan.sample_seqs), vocab_size], overwritten.

        drawing: where it has been sent to the device. plan_needs: where needs() has been asked. Token ids, NO_TOKEN
        where logits are not finite, and log-probabilities by index into them, for requests that asked.
        """
        plan_needs = plan_needs or self.needs(plan)
        if plan_needs is None:
            return ops.argmax(logits), None
        needs, any_needs, request_ids, rows, followed = plan_needs
        if followed:
            self._wait_for_masks()
        if followed and any_needs == Needs.GRAMMAR:  # in steps of 200 us the rest would be noticed
            followed.mask(logits)
            token_ids = ops.argmax(logits)
            self._advance(followed, logits, token_ids)
            return token_ids, None

        num_output_tokens = self._num_output_tokens(plan, rows)
        raw = None
        if any_needs & Needs.LOGPROBS:
            asked = np.flatnonzero(needs & Needs.LOGPROBS)
            raw = logits[to_device(asked, logits.device)].log_softmax(-1)
        guesses = GuessedRows(plan) if any_needs & Needs.LOOKS_BACK else None
        if any_needs & Needs.ADJUSTMENTS:
            adjust(logits, self._adjusted_rows(needs, request_ids, num_output_tokens, guesses))
        if guesses and any_needs & Needs.ALLOWED:
            self._keep_allowed(logits, needs, request_ids, num_output_tokens, guesses)
        if any_needs & Needs.RANDOM:
            token_ids = self._draw(logits, self._parameters(rows, num_output_tokens), drawing, followed)
        else:
            if followed:
                followed.mask(logits)
            token_ids = ops.argmax(logits)
        if followed:
            self._advance(followed, logits, token_ids)
        if guesses:
            self._remember(needs & guesses.mask_real(token_ids), request_ids, token_ids)
        if raw is None:
            return token_ids, None
        return token_ids, self._logprobs(raw, token_ids, asked, request_ids)

    def correct(self, logits: Tensor, token_ids: TokenIds, plan_needs: PlanNeeds) -> None:
        """What sample() comes to where a step has chosen the likeliest tokens already, in place.

        REQUIRES: plan_needs.corrects_greedy.
        """
        assert plan_needs.followed is not None
        self._wait_for_masks()
        self._advance(plan_needs.followed, logits, token_ids)

    def _draw(
        self, logits: Tensor, parameters: DrawParameters, drawing: Parcel | None, followed: FollowedRows | None
    ) -> TokenIds:
        if followed is None:
            return ops.draw_tokens(logits, parameters, drawing)
        if ops.takes_addresses(logits):
            return ops.draw_tokens(logits, parameters, addresses=followed.mask_addresses(len(logits)))
        followed.mask(logits)
        return ops.draw_tokens(logits, parameters, drawing)

    def take_problems(self) -> dict[int, str] | None:
        """Why requests got NO_TOKEN in the last sample(), by request id, where no number of the model's is to blame."""
        found, self._problems = self._problems, {}
        return found or None

    def _num_output_tokens(self, plan: BatchPlan, rows: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """Before this step, by the tokens that are sampled. rows: theirs."""
        return plan.seq_lens[plan.sample_seqs] - self._table.num_prompt_tokens[rows]

    def _adjusted_rows(
        self,
        needs: npt.NDArray[np.uint8],
        request_ids: npt.NDArray[np.uint64],
        num_output: npt.NDArray[np.int64],
        guesses: GuessedRows | None,
    ) -> list[AdjustedRow]:
        which = np.flatnonzero(needs & Needs.ADJUSTMENTS)
        found = []
        for row, request_id, num in zip(
            which.tolist(), request_ids[which].tolist(), num_output[which].tolist(), strict=True
        ):
            state = self._states[request_id]
            history = state.history
            if history is not None and guesses is not None:
                history = history.behind(guesses.before(row))
            found.append(AdjustedRow(row, state, num, history))
        return found

    def _keep_allowed(
        self,
        logits: Tensor,
        needs: npt.NDArray[np.uint8],
        request_ids: npt.NDArray[np.uint64],
        num_output: npt.NDArray[np.int64],
        guesses: GuessedRows,
    ) -> None:
        """In place. A request that nothing is left to gets no token. REQUIRES: its matcher has been waited for."""
        which = np.flatnonzero(needs & Needs.ALLOWED).tolist()
        masks = []
        for i, request_id in zip(which, request_ids[which].tolist(), strict=True):
            state = self._states[request_id]
            assert state.allowed is not None
            may_stop = state.matcher is not None or int(num_output[i]) >= state.min_tokens
            mask = state.allowed.mask(may_stop=may_stop, guessed=guesses.before(i))
            left = mask if state.matcher is None else mask & state.matcher.mask[: len(mask)]
            if not left.any():
                self._problems[request_id] = _NOTHING_LEFT
            masks.append(mask)
        allow_only(logits, which, masks)

    def _followed(self, needs: npt.NDArray[np.uint8], request_ids: npt.NDArray[np.uint64]) -> FollowedRows:
        which = np.flatnonzero(needs & Needs.GRAMMAR)
        states = [self._states[request_id] for request_id in request_ids[which].tolist()]
        matchers = [state.matcher for state in states if state.matcher is not None]
        return FollowedRows(which, matchers, (needs[which] & Needs.MASK == 0) & self._corrects_greedy)

    def _wait_for_masks(self) -> None:
        """Until matchers are at this token."""
        if self._grammars is not None:
            self._grammars.wait_for_masks()

    def _advance(self, followed: FollowedRows, logits: Tensor, token_ids: TokenIds) -> None:
        """token_ids: of all rows; those that grammars refuse are corrected. Matchers move on."""
        matchers, tokens = followed.correct(logits, token_ids)
        if self._grammars is not None:
            self._grammars.advance(matchers, tokens, followed.matchers)

    def _parameters(self, rows: npt.NDArray[np.int32], num_output_tokens: npt.NDArray[np.int64]) -> DrawParameters:
        table = self._table
        return DrawParameters(
            table.temperature[rows],
            table.top_k[rows],
            table.top_p[rows],
            table.min_p[rows],
            table.seed[rows],
            num_output_tokens,
        )

    def _remember(self, needs: npt.NDArray[np.uint8], request_ids: npt.NDArray[np.uint64], token_ids: TokenIds) -> None:
        """needs: of the rows that count; 0 for others."""
        which = np.flatnonzero(needs & (Needs.PENALTIES | Needs.ALLOWED))
        for request_id, token in zip(request_ids[which].tolist(), token_ids[which].tolist(), strict=True):
            state = self._states[request_id]
            if state.history is not None and token != NO_TOKEN:
                state.history.add(token)
            if state.allowed is not None:
                state.allowed.note(token)

    def _logprobs(
        self, raw: Tensor, token_ids: TokenIds, asked: npt.NDArray[np.int64], request_ids: npt.NDArray[np.uint64]
    ) -> dict[int, TokenLogprobs]:
        states = [self._states[request_id] for request_id in request_ids[asked].tolist()]
        numbers = [state.params.num_logprobs or 0 for state in states]
        chosen = to_device(token_ids[asked].astype(np.int64).clip(min=0), raw.device)  # NO_TOKEN: nobody will see them
        entries = token_logprobs(raw, chosen, numbers)
        named = {i: state.params.logprob_token_ids for i, state in enumerate(states) if state.params.logprob_token_ids}
        for i, pairs in named_logprobs(raw, named).items():
            entries[i] = msgspec.structs.replace(entries[i], top=pairs)
        return dict(zip(asked.tolist(), entries, strict=True))
