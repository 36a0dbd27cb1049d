"""Tokens per second of llama.cpp in process, one stream: for a Python that has llama-cpp-python, run as a script.

    PYTHON bench/run/peers/llama_decodes.py models/random-100m.Q8_0.gguf ... [--prompt 128] [--tokens 128] [--threads 2]

Build it for the machine that it runs on: CMAKE_ARGS="-DGGML_NATIVE=ON" pip install --no-binary=llama-cpp-python
llama-cpp-python. The files are write_gguf.py's. Prints a line for each, of the best of some repeats.
"""

from __future__ import annotations

import argparse
import time

import llama_cpp


def measure(path: str, num_prompt: int, num_tokens: int, threads: int, repeats: int) -> tuple[float, float]:
    """Tokens per second of the prompt and of the decodes behind it, greedy."""
    model = llama_cpp.Llama(
        path, n_ctx=num_prompt + num_tokens + 8, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False
    )
    best = [0.0, 0.0]
    for repeat in range(repeats):
        model.reset()
        prompt = [3 + (7 * i + repeat) % 8000 for i in range(num_prompt)]
        begin = time.perf_counter()
        model.eval(prompt)
        first = time.perf_counter()
        for _ in range(num_tokens):
            model.eval([model.sample(temp=0.0)])
        end = time.perf_counter()
        best = [max(best[0], num_prompt / (first - begin)), max(best[1], num_tokens / (end - first))]
    return best[0], best[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    print(f"llama-cpp-python {llama_cpp.__version__}, {args.threads} threads")
    for path in args.files:
        prompt, decode = measure(path, args.prompt, args.tokens, args.threads, args.repeats)
        print(f"{path}: prompt {prompt:.0f} tokens/s, decodes {decode:.1f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
