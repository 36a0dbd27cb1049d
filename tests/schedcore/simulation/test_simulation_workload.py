"""What arrives in a simulation: arrival processes, synthetic prompts, workloads and traces."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from schedcore._core import simulation
from schedcore.api.types import RequestClass
from schedcore.simulation.workloads.arrivals import ArrivalProcess
from schedcore.simulation.workloads.token_ids import Prompts, StreamKind, stream_id, stream_tokens
from schedcore.simulation.workloads.traces import TraceError, read_trace
from schedcore.simulation.workloads.workload import NO_REQUEST, Workload, make_workload

MOONCAKE = Path(__file__).parents[2] / "data" / "mooncake_conversation_cut.csv"


def shared_prefix(workload: Workload, a: int, b: int) -> int:
    left, right = workload.prompts.prompt_token_ids(a), workload.prompts.prompt_token_ids(b)
    n = min(left.size, right.size)
    differing = np.flatnonzero(left[:n] != right[:n])
    return int(differing[0]) if differing.size else n


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


# ---- arrivals ----


@pytest.mark.parametrize(("text", "cv"), [("poisson:3", 1.0), ("gamma:3:cv5", 5.0), ("gamma:3:cv0.5", 0.5)])
def test_gaps_have_the_rate_and_the_variation_that_was_asked_for(text: str, cv: float) -> None:
    gaps = np.diff(ArrivalProcess.parse(text).times(200_000, seed=1), prepend=0.0)
    assert gaps.mean() == pytest.approx(1 / 3, rel=0.04)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.04)


def test_uniform_arrivals_are_a_metronome_and_a_batch_comes_at_once() -> None:
    assert ArrivalProcess.parse("uniform:4").times(3, seed=0).tolist() == [0.25, 0.5, 0.75]
    assert ArrivalProcess.parse("batch").times(3, seed=0).tolist() == [0.0, 0.0, 0.0]


def test_a_seed_gives_the_same_arrivals_again_and_another_seed_others() -> None:
    process = ArrivalProcess(2.0)
    assert process.times(50, 7).tobytes() == process.times(50, 7).tobytes()
    assert process.times(50, 7).tobytes() != process.times(50, 8).tobytes()


@pytest.mark.parametrize(
    "text", ["poisson", "poisson:0", "poisson:x", "gamma:3", "gamma:3:5", "gamma:3:cv-1", "never:3"]
)
def test_what_is_no_arrival_process_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=text.split(":")[0]):
        ArrivalProcess.parse(text)


# ---- token ids ----


def test_numpy_and_the_core_give_the_same_tokens() -> None:
    for stream in (0, 1, stream_id(StreamKind.BLOCK, 12345), 2**64 - 1):
        tokens = stream_tokens(stream, 3, 500)
        assert tokens.tolist() == simulation.synthetic_tokens(stream, 3, 500).tolist()
        assert (tokens >= 0).all()


def test_prompts_share_a_prefix_exactly_as_far_as_their_runs_agree() -> None:
    a, b, c = (stream_id(StreamKind.BLOCK, number) for number in range(3))
    runs = [[(a, 4), (b, 8), (0, 11)], [(a, 4), (b, 8), (1, 9)], [(a, 4), (c, 8)], [(b, 4)]]
    workload = make_workload([0.0] * 4, Prompts.from_runs(runs, range(4)), [1] * 4)
    assert workload.input_tokens.tolist() == [11, 9, 8, 4]
    assert [shared_prefix(workload, 0, other) for other in (1, 2, 3)] == [8, 4, 0]


# ---- workloads ----


def test_merged_workloads_share_no_prefix_and_keep_who_follows_whom() -> None:
    one = make_workload([0.0, 1.0], Prompts.unrelated([5, 5]), [1, 1], follows=[NO_REQUEST, 0])
    both = one.merged(one.with_class(RequestClass.OFFLINE)).merged(one)
    assert both.follows.tolist() == [-1, 0, -1, 2, -1, 4]
    assert both.request_class.tolist() == [0, 0, 1, 1, 0, 0]
    assert max(shared_prefix(both, a, b) for a in range(6) for b in range(a)) == 0


def test_what_follows_a_request_that_is_left_out_is_left_out_too() -> None:
    workload = make_workload(
        [0.0, 1.0, 2.0, 3.0, 4.0],
        Prompts.unrelated([5, 6, 7, 8, 9]),
        [1] * 5,
        follows=[2, 0, NO_REQUEST, 1, NO_REQUEST],
    )
    kept = workload.select(np.array([False, True, True, True, True]))
    assert kept.input_tokens.tolist() == [7, 9]
    assert kept.follows.tolist() == [NO_REQUEST, NO_REQUEST]
    kept = workload.select(np.array([True, True, True, False, False]))
    assert kept.input_tokens.tolist() == [5, 6, 7]
    assert kept.follows.tolist() == [2, 0, NO_REQUEST]


def test_selected_prompts_keep_their_tokens() -> None:
    runs = [[(1, 4), (2, 6)], [(3, 5)], [(4, 2), (5, 3), (6, 9)]]
    workload = make_workload([0.0] * 3, Prompts.from_runs(runs, [7, 8, 9]), [1] * 3)
    kept = workload.select(np.array([True, False, True]))
    assert kept.prompts.prompt_token_ids(1).tolist() == workload.prompts.prompt_token_ids(2).tolist()
    assert kept.prompts.continuations.tolist() == [7, 9]


def test_fitting_counts_prompt_and_answer() -> None:
    workload = make_workload([0.0] * 3, Prompts.unrelated([90, 90, 101]), [10, 11, 1])
    assert workload.fitting(100).input_tokens.tolist() == [90]


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="one length"):
        make_workload([0.0, 1.0], Prompts.unrelated([5, 5]), [1])


# ---- traces ----


def test_equal_block_ids_are_equal_prefixes_and_only_those() -> None:
    trace = read_trace(MOONCAKE)
    workload = trace.workload()
    assert len(trace) == 28
    for a in range(len(trace)):
        for b in range(a):
            pairs = zip(trace.prefix_hashes[a], trace.prefix_hashes[b], strict=False)
            same = [left == right for left, right in pairs]
            num_blocks = same.index(False) if False in same else len(same)
            shortest = min(trace.input_tokens[a], trace.input_tokens[b])
            assert shared_prefix(workload, a, b) == min(512 * num_blocks, shortest)


def test_the_block_size_is_inferred_with_and_without_a_partial_last_block(tmp_path: Path) -> None:
    text = "input_tokens,output_tokens,prefix_hashes\n70,1,{}\n200,1,{}\n"
    partial = read_trace(write(tmp_path / "partial.csv", text.format("1 2", "1 3 4 5")))
    full = read_trace(write(tmp_path / "full.csv", text.format("1", "1 3 4")))
    assert shared_prefix(partial.batch_workload(), 0, 1) == 64
    assert shared_prefix(full.batch_workload(), 0, 1) == 64
    with pytest.raises(TraceError, match="block size"):
        read_trace(write(tmp_path / "odd.csv", text.format("1", "1 2 3 4 5 6 7"))).batch_workload()
    ambiguous = read_trace(write(tmp_path / "short.csv", "input_tokens,output_tokens,prefix_hashes\n10,1,1\n12,1,1\n"))
    with pytest.raises(TraceError, match="block size"):
        ambiguous.batch_workload()
    assert shared_prefix(ambiguous.batch_workload(hash_block_size=16), 0, 1) == 10


SESSIONS = """arrival_s,session_id,turn,input_tokens,output_tokens
,a,1,10,5
,b,1,20,5
,a,2,30,5
,a,3,12,5
,,,10,5
"""


def test_a_turn_repeats_the_prompts_and_answers_before_it(tmp_path: Path) -> None:
    workload = read_trace(write(tmp_path / "sessions.csv", SESSIONS)).batch_workload()
    assert shared_prefix(workload, 0, 2) == 10
    answer = stream_tokens(int(workload.prompts.continuations[0]), 10, 15)
    assert workload.prompts.prompt_token_ids(2)[10:15].tolist() == answer.tolist()
    # The third turn is too short for the history, so it is about something else.
    assert [shared_prefix(workload, a, b) for a, b in ((3, 2), (1, 0), (4, 0), (4, 1))] == [0, 0, 0, 0]


def test_paced_sessions_arrive_by_the_process_and_answer_after_a_pause(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "sessions.csv", SESSIONS))
    workload = trace.paced_workload(ArrivalProcess(2.0, 0.0), think_s=3.0, seed=5)
    assert workload.follows.tolist() == [-1, -1, 0, 2, -1]
    assert workload.arrival_s[[0, 1, 4]].tolist() == [0.5, 1.0, 1.5]
    assert (workload.arrival_s[[2, 3]] > 0).all()
    assert len(trace.paced_workload(ArrivalProcess(2.0), num_requests=3)) == 3


def test_the_mean_pause_is_what_was_asked_for(tmp_path: Path) -> None:
    rows = "".join(f",s,{turn},{100 * turn},1\n" for turn in range(1, 5001))
    trace = read_trace(write(tmp_path / "long.csv", SESSIONS.splitlines()[0] + "\n" + rows))
    workload = trace.paced_workload(ArrivalProcess(1.0), think_s=3.0)
    assert workload.arrival_s[1:].mean() == pytest.approx(3.0, rel=0.05)


def test_a_session_goes_as_far_as_the_context(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "sessions.csv", SESSIONS)).fitting(30)
    assert trace.input_tokens == [10, 20, 10]
    assert trace.sessions == ["a", "b", ""]


def test_recorded_times_are_kept_but_for_jitter() -> None:
    trace = read_trace(MOONCAKE)
    plain = trace.workload().arrival_s
    spread = trace.workload(jitter_s=3.0, seed=1).arrival_s - plain
    assert plain.tolist() == trace.arrival_s.tolist()
    assert (spread >= 0).all()
    assert (spread < 3).all()
    assert np.unique(spread).size == len(trace)


def test_lengths_are_drawn_in_pairs() -> None:
    trace = read_trace(MOONCAKE)
    workload = trace.sampled_workload(ArrivalProcess(1.0), 500, seed=2)
    pairs = set(zip(trace.input_tokens, trace.output_tokens, strict=True))
    drawn = set(zip(workload.input_tokens.tolist(), workload.output_tokens.tolist(), strict=True))
    assert drawn <= pairs
    assert len(drawn) > len(pairs) / 2
    assert shared_prefix(workload, 0, 1) == 0


def test_gzipped_files_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(SESSIONS.encode()))
    trace = read_trace(path)
    assert (trace.name, len(trace), trace.has_arrivals) == ("trace", 5, False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no rows"),
        ("input_tokens,arrival_s\n1,2\n", "no column 'output_tokens'"),
        ("input_tokens,output_tokens\n1,x\n", "invalid literal"),
        ("input_tokens,output_tokens\n1,0\n", "no tokens"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "broken.csv", text)
    with pytest.raises(TraceError, match=message) as caught:
        read_trace(path)
    assert "broken.csv" in str(caught.value)


def test_a_trace_without_times_says_so(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no arrival times"):
        read_trace(write(tmp_path / "sessions.csv", SESSIONS)).workload()
