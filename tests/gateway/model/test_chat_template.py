"""Chat templates against Hugging Face's own rendering."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from fakes.byte_tokenizer import CHAT_TEMPLATE
from gateway.model.chat_template import ChatTemplate
from gateway.model.checkpoint import CheckpointError
from gateway.protocol.chat import ChatRequest, Message
from gateway.protocol.errors import InvalidRequestError

LLAMA_STYLE = """{{- bos_token }}
{% if messages[0]['role'] == 'system' %}
    {% set system = messages[0]['content'] | trim %}
    {% set messages = messages[1:] %}
{% else %}
    {% set system = '' %}
{% endif %}
{% for message in messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate.') }}
    {% endif %}
    {% if loop.first and system %}
        {{- '<<' + system + '>>' }}
    {% endif %}
    {{- '[' + message['role'] + '] ' + message['content'] | trim + eos_token }}
{% endfor %}
{% if add_generation_prompt %}{{- '[assistant]' }}{% endif %}
"""
LOOPS = """{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m | tojson }}
{% if loop.index > 3 %}{% break %}{% endif %}{% endfor %}"""
GENERATION = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %};{% endfor %}"
NAMESPACE = """{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}
{%- if thinking is defined and thinking %} thinking{% endif %}"""

TEMPLATES = {"fake": CHAT_TEMPLATE, "llama": LLAMA_STYLE, "loops": LOOPS, "generation": GENERATION, "ns": NAMESPACE}
CONVERSATIONS = {
    "one": [("user", "Hi <b>there</b> é")],
    "system": [("system", " Be brief. "), ("user", "Hi")],
    "turns": [("user", "Hi"), ("assistant", " Hello! "), ("user", 'What\'s "2+2"?')],
}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def render(template: str, conversation: list[tuple[str, str]], **options: Any) -> str:
    messages = [Message(role=role, content=content) for role, content in conversation]  # type: ignore[arg-type]
    return ChatTemplate(template, SPECIAL).render(ChatRequest(messages=messages, **options))


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("adds_prompt", [True, False])
def test_renders_what_hugging_face_renders(template: str, conversation: str, adds_prompt: bool) -> None:
    turns = CONVERSATIONS[conversation]
    messages = [{"role": role, "content": content} for role, content in turns]
    expected, _ = render_jinja_template(
        [messages], chat_template=TEMPLATES[template], add_generation_prompt=adds_prompt, thinking=True, **SPECIAL
    )
    options = {"add_generation_prompt": adds_prompt, "chat_template_kwargs": {"thinking": True}}
    assert render(TEMPLATES[template], turns, **options) == expected[0]


def test_refusal_of_the_template_is_the_clients_error() -> None:
    with pytest.raises(InvalidRequestError, match="Roles must alternate") as raised:
        render(LLAMA_STYLE, [("user", "a"), ("user", "b")])
    assert raised.value.param == "messages"


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].content.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
    ],
)
def test_templates_cannot_leave_the_sandbox(attack: str) -> None:
    with pytest.raises(InvalidRequestError):
        render(attack, [("user", "a")])


def test_dates_are_available() -> None:
    assert re.fullmatch(r"\d{4}", render("{{ strftime_now('%Y') }}", [("user", "a")]))
    assert render("{{ strftime_now('%Y') }}", [("user", "a")]) <= str(datetime.now().year)


def test_developers_are_systems_unless_the_template_knows_them() -> None:
    assert render("{{ messages[0].role }}", [("developer", "a")]) == "system"
    assert render("{# developer #}{{ messages[0].role }}", [("developer", "a")]) == "developer"


@pytest.mark.parametrize("content", ["Once upon", " Once upon ", "Once\n"])
@pytest.mark.parametrize("template", ["fake", "llama"])
def test_continued_message_ends_the_prompt(template: str, content: str) -> None:
    turns = [("user", "Tell"), ("assistant", content)]
    text = render(TEMPLATES[template], turns, continue_final_message=True)
    assert text.endswith((content, content.strip()))
    assert render(TEMPLATES[template], turns, add_generation_prompt=False).startswith(text)


def test_message_that_the_template_hides_cannot_be_continued() -> None:
    with pytest.raises(InvalidRequestError, match="cannot be continued"):
        render("nothing", [("user", "a"), ("assistant", "b")], continue_final_message=True)


def test_malformed_template_is_found_at_the_start() -> None:
    with pytest.raises(CheckpointError, match="line 2"):
        ChatTemplate("\n{% for %}", {})
