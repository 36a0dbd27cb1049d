"""Functions that a chat may call: what requests say of them, and the calls in answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.protocol.errors import InvalidRequestError

MAX_TOOLS = 512

Choice = Literal["none", "auto", "required"]
FunctionName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.\-]{1,128}$")]


class Function(msgspec.Struct, frozen=True, omit_defaults=True):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None  # a JSON schema; None: it takes none
    strict: bool | None = None  # calls follow the schema


class Tool(msgspec.Struct, frozen=True):
    function: Function
    type: Literal["function"] = "function"


class ChosenFunction(msgspec.Struct, frozen=True):
    name: str


class ToolChoice(msgspec.Struct, frozen=True):
    function: ChosenFunction
    type: Literal["function"] = "function"


class CalledFunction(msgspec.Struct, frozen=True):
    name: str
    arguments: str | dict[str, Any] | None = None  # JSON, written out or not


class EarlierCall(msgspec.Struct, frozen=True):
    """Of an earlier answer; handed to the template."""

    function: CalledFunction
    id: str | None = None
    type: str | None = None


class FunctionCall(msgspec.Struct, frozen=True):
    name: str
    arguments: str  # JSON


class ToolCall(msgspec.Struct, frozen=True):
    id: str
    function: FunctionCall
    type: str = "function"


class FunctionDelta(msgspec.Struct, frozen=True):
    name: str | UnsetType = UNSET
    arguments: str = ""


class ToolCallDelta(msgspec.Struct, frozen=True):
    """The first one of a call has its id, type and name; arguments are what is new."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


def check_tools(tools: list[Tool] | None, choice: str | ToolChoice | None) -> None:
    """What types alone cannot say. Raises InvalidRequestError."""
    names = [tool.function.name for tool in tools or ()]
    if len(set(names)) != len(names):
        raise InvalidRequestError("Two 'tools' have the same name.", param="tools")
    if choice in (None, "none", "auto"):
        return
    if not names:
        raise InvalidRequestError("'tool_choice' asks for a call, but there are no 'tools'.", param="tool_choice")
    if isinstance(choice, ToolChoice) and choice.function.name not in names:
        raise InvalidRequestError(
            f"'tool_choice' names '{choice.function.name}', which is not among the 'tools'.",
            param="tool_choice.function.name",
        )


def as_tools(made: list[dict[str, Any]], names: list[str]) -> list[Tool]:
    """Tools of another protocol, made a chat's. names: of the parameters. Raises InvalidRequestError."""
    tools = []
    for tool, name in zip(made, names, strict=True):
        try:
            tools.append(msgspec.convert(tool, Tool))
        except msgspec.ValidationError as error:
            raise InvalidRequestError(f"Invalid value for '{name}': {error}.", param=name) from None
    return tools


def as_tool_choice(made: Any) -> Choice | ToolChoice | None:
    """Raises InvalidRequestError."""
    try:
        choice: Choice | ToolChoice | None = msgspec.convert(made, Choice | ToolChoice | None)
    except msgspec.ValidationError as error:
        raise InvalidRequestError(f"Invalid value for 'tool_choice': {error}.", param="tool_choice") from None
    return choice
