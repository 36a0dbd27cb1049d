"""Many requests at once, on one client."""

import asyncio

import hocket


async def main() -> None:
    async with hocket.AsyncClient() as client:
        questions = [f"What is {n} + {n}?" for n in range(1, 9)]
        answers = await asyncio.gather(*(client.chat.create(question, max_tokens=32) for question in questions))
        for question, answer in zip(questions, answers, strict=True):
            print(question, answer.text)


asyncio.run(main())
