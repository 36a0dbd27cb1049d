"""Training of the demo model: what is learnt from, what a token may see, what is saved."""

import random
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from bench.demo_model import model_files, train
from bench.demo_model.network import Decoder, Shape

TINY = Shape(vocab_size=300, hidden_size=32, intermediate_size=48, num_hidden_layers=2, head_dim=8)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return model_files.train_tokenizer(train.tokenizer_texts(200), vocab_size=600)


@pytest.fixture
def network() -> Decoder:
    torch.manual_seed(1)
    network = Decoder(TINY)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return network


def test_only_the_assistants_words_and_its_end_of_turn_are_learnt(tokenizer: Tokenizer) -> None:
    tokens, _, is_reply = train.rows(random.Random(3), tokenizer, 256)
    learnt = [token for token, learn in zip(tokens[0].tolist(), is_reply[0].tolist(), strict=True) if learn]
    text = tokenizer.decode(learnt, skip_special_tokens=False)
    packed = tokenizer.decode(tokens[0].tolist(), skip_special_tokens=False)
    spoken = [part.split(model_files.END)[0] for part in packed.split(model_files.ASSISTANT)[1:]]
    spoken = spoken if spoken[-1] else spoken[:-1]  # the row may end before the last reply begins
    assert len(spoken) > 2
    assert text.removesuffix(model_files.END).split(model_files.END) == spoken


def test_a_token_sees_nothing_of_another_conversation_in_its_row(network: Decoder) -> None:
    documents = torch.tensor([[0] * 5 + [1] * 7])
    tokens = torch.randint(0, 300, (1, 12))
    other = tokens.clone()
    other[:, :5] = (other[:, :5] + 1) % 300
    assert torch.equal(network(tokens, documents)[:, 5:], network(other, documents)[:, 5:])
    assert not torch.equal(network(tokens, documents)[:, :5], network(other, documents)[:, :5])


def test_the_saved_checkpoint_computes_in_transformers_what_was_trained(
    network: Decoder, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    model_files.save(tmp_path, network, tokenizer)
    for parameter in network.parameters():
        parameter.data = parameter.data.to(torch.bfloat16).float()
    tokens = torch.randint(0, 300, (2, 20))
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ours = network.logits(network(tokens, torch.zeros_like(tokens)))
    torch.testing.assert_close(ours, reference(tokens).logits, atol=1e-4, rtol=1e-4)


def test_a_run_resumes_where_it_was_saved(tmp_path: Path) -> None:
    torch.manual_seed(1)
    run = train.Run(tmp_path)
    loss = train.loss_of(run.network, torch.zeros(1, 9, dtype=int), torch.zeros(1, 9), torch.ones(1, 9, dtype=bool))
    loss.backward()
    for optimizer in run.optimizers:
        optimizer.step()
    run.step = 41
    run.save()
    torch.manual_seed(2)
    resumed = train.Run(tmp_path)
    assert resumed.step == 41
    for before, after in zip(run.network.parameters(), resumed.network.parameters(), strict=True):
        assert torch.equal(before, after)
    for before_state, after_state in zip(
        run.optimizers[0].state.values(), resumed.optimizers[0].state.values(), strict=True
    ):
        assert torch.equal(before_state["momentum"], after_state["momentum"])


def test_orthogonalised_matrices_have_singular_values_near_one() -> None:
    torch.manual_seed(1)
    for shape in ((3, 48, 32), (2, 32, 48)):
        values = torch.linalg.svdvals(train.orthogonalised(torch.randn(shape)))
        assert values.min() > 0.5
        assert values.max() < 1.5


def test_learning_rate_rises_stays_and_falls_to_zero() -> None:
    factors = [train.learning_rate_factor(step, 1000) for step in range(1000)]
    assert factors[0] < 0.02
    assert factors[60:440] == [1.0] * 380
    assert factors[450:] == sorted(factors[450:], reverse=True)
    assert factors[-1] < 0.01
