"""Print what llama.cpp's built-in chat templates make of some conversations, as JSON.

python make.py NAME... > builtin.json, with llama-cpp-python 0.3.36 installed; the names are those
of `ChatTemplate::builtin_names`. `texts` has a pair for each conversation: without and with the
generation prompt. The function asked is `llama_chat_apply_template`.
"""

import ctypes
import json
import sys

import llama_cpp

SYSTEM = {"role": "system", "content": " You are terse. "}
USER = {"role": "user", "content": "Größe?\n"}
ANSWER = {"role": "assistant", "content": " 2 < 3 "}
MORE = {"role": "user", "content": "And 'why'?"}
CONVERSATIONS = [
    [USER],
    [SYSTEM, USER],
    [USER, ANSWER, MORE],
    [SYSTEM, USER, ANSWER, MORE, ANSWER],
]


def apply(name: str, messages: list[dict], add_generation_prompt: bool) -> str:
    chat = (llama_cpp.llama_chat_message * len(messages))()
    for place, message in zip(chat, messages):
        place.role = message["role"].encode()
        place.content = message["content"].encode()
    buffer = ctypes.create_string_buffer(1 << 16)
    length = llama_cpp.llama_chat_apply_template(
        name.encode(), chat, len(messages), add_generation_prompt, buffer, len(buffer)
    )
    assert 0 <= length <= len(buffer), (name, length)
    return buffer.raw[:length].decode()


def main() -> None:
    texts = {
        name: [[apply(name, messages, False), apply(name, messages, True)] for messages in CONVERSATIONS]
        for name in sys.argv[1:]
    }
    cases = {"conversations": CONVERSATIONS, "texts": texts}
    json.dump(cases, sys.stdout, ensure_ascii=False, indent=1)
    print()


if __name__ == "__main__":
    main()
