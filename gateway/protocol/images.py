"""Images in a chat's messages, as OpenAI has them: parts of type image_url, whose data: URL holds the image itself.

Nothing is fetched: a URL that this server asked for could be one that only it can reach.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gateway.protocol.chat import IMAGE, ContentPart, Message, not_supported
from gateway.protocol.errors import InvalidRequestError
from schedcore.api.types import ImageLimits

_HEAD = re.compile(r"data:image/[a-z0-9.+-]{1,64};base64,", re.ASCII | re.IGNORECASE)
_IMAGE_ROLES = ("user",)  # answers of tools and others: templates make texts of them


class EncodedImage(NamedTuple):
    text: str  # a data: URL
    param: str


def encoded_images(messages: Sequence[Message], limits: ImageLimits | None) -> list[EncodedImage]:
    """In their order. limits: of the engine; None: it takes none. Raises InvalidRequestError."""
    found = list(_image_parts(messages))
    if found and limits is None:
        raise not_supported(IMAGE, found[0][2])
    for part, role, where in found:
        if role not in _IMAGE_ROLES:
            raise InvalidRequestError(
                f"Images are taken in messages of the user's, not of role '{role}'.",
                param=f"{where}.type",
                code="unsupported",
            )
        param = f"{where}.image_url.url"
        if not _HEAD.match(part.url or ""):
            raise InvalidRequestError(
                "An image comes as a data: URL, 'data:image/png;base64,...': this server fetches nothing.",
                param=param,
                code="unsupported",
            )
        assert limits is not None
        if len(part.url or "") > limits.max_image_bytes * 4 // 3 + 128:
            raise InvalidRequestError(f"An image has at most {limits.max_image_bytes} bytes.", param=param)
    if limits is not None and len(found) > limits.max_images:
        raise InvalidRequestError(
            f"At most {limits.max_images} images are taken, but there are {len(found)}.", param="messages"
        )
    return [EncodedImage(part.url or "", f"{where}.image_url.url") for part, _, where in found]


def decode_images(images: Sequence[EncodedImage]) -> list[bytes]:
    """The bytes of their files. Raises InvalidRequestError."""
    return [_decode(image) for image in images]


def _decode(image: EncodedImage) -> bytes:
    try:
        return base64.b64decode(image.text[image.text.index(",") + 1 :], validate=True)
    except binascii.Error as error:
        raise InvalidRequestError(f"The image's base64 is malformed: {error}.", param=image.param) from None


def _image_parts(messages: Sequence[Message]) -> Iterator[tuple[ContentPart, str, str]]:
    """With the role and the path of each."""
    for i, message in enumerate(messages):
        if isinstance(message.content, list):
            for j, part in enumerate(message.content):
                if part.type == IMAGE:
                    yield part, message.role, f"messages[{i}].content[{j}]"
