"""Makes what crates/text/tests/llama_cpp.rs compares with: llama.cpp's token ids.

Needs: pip install llama-cpp-python (0.3.36). Run:
    python ggml.py strings > strings.json
    python ggml.py hashes strings.json NAME=MODEL.gguf ... > hashes.json
    python ggml.py dump strings.json MODEL.gguf > ids.json

Every string is tokenized twice: as plain text, and with special tokens added and parsed. `hashes`
folds the two lists of ids into 32 bits per string (FNV-1a over little-endian ids, with u32::MAX
between the lists), and what every token shows into one more; `dump` writes all of it, to look at.
"""

import json
import random
import sys

SENTENCES = """
The quick brown fox jumps over the lazy dog.
It's what they'd've said: "I'LL, we'll, you're, SHE'S, I'm, don't, he'D."
In 1969, $24.00 for 1,000,000 m² at 3.14159e-10? 007 0x1F 1234567890
Falsches Üben von Xylophonmusik quält jeden größeren Zwerg.
Voix ambiguë d'un cœur qui au zéphyr préfère les jattes de kiwis.
El pingüino Wenceslao hizo kilómetros; ¿y tú? ¡Sí!
Příliš žluťoučký kůň úpěl ďábelské ódy.
Pijamalı hasta yağız şoföre çabucak güvendi. İIıi
Съешь же ещё этих мягких французских булок, да выпей чаю.
Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.
דג סקרן שט בים מאוכזב ולפתע מצא חברה.
نص حكيم له سر قاطع وذو شأن عظيم ٠١٢٣٤٥
قلبم از دیدن این‌همه زیبایی می‌تپد
ऋषियों को सताने वाले दुष्ट राक्षसों १२३४
আমার সোনার বাংলা, আমি তোমায় ভালোবাসি।
யாமறிந்த மொழிகளிலே தமிழ்மொழி
ఆంధ్ర ప్రదేశ్ ಕನ್ನಡ ಭಾಷೆ മലയാളം
ਪੰਜਾਬੀ ગુજરાતી සිංහල བོད་སྐད་
เป็นมนุษย์สุดประเสริฐเลิศคุณค่า ພາສາລາວ
ភាសាខ្មែរ មានសិទ្ធិ မြန်မာဘာသာ
ქართული ენა Հայերեն አማርኛ ቋንቋ
我能吞下玻璃而不伤身体。2024年10月
繁體中文：臺灣、香港與澳門。「引號」
いろはにほへと ちりぬるを ｶﾞｷﾞｸﾞ アイウエオ
키스의 고유조건은 입술끼리 만나야 하고
Tiếng Việt: Điều này thật tuyệt vời!
🦙🚀 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪🇯🇵 e\u0301 n\u0303 Z͑ͫ̓ͪ̂ͫ
∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β ⇒ ℵ₀ ≤ 2^ω ½ Ⅷ ③
def f(self, *args, **kwargs) -> None:\n\treturn {k: v for k, v in zip(a, b)}\n
    for (int i = 0; i < n; ++i) {\r\n        a[i] += b[i] << 2;\r\n    }\r\n
<html><body class="x">&nbsp;</body></html>
https://example.org/a_b-c?d=e&f=%20#g user@host.org C:\\dir\\file.txt
SELECT * FROM t WHERE a='b' -- comment
# Title\n\n- item\n- **bold** `code`\n\n```rust\nfn main() {}\n```\n
camelCase HTTPServer snake_case SCREAMING_CASE XMLHttpRequest iPhone15 ÉCOLE école
""".split("\n")

FRAGMENTS = [
    " ", "  ", "   ", "    ", "\t", "\n", "\n\n", "\r\n", "\u00a0", "\u3000", "\u2028", "\u200b",
    "\u0085", "\u2581", "\u0120", "'s", "'S", "'ll", "'", "\u2019t", "0", "7", "42", "123", "1234",
    "12345678", "½", "²", "٣", "a", "Ab", "ABC", "xyz", "é", "e\u0301", "ß", "ж", "字", "漢字", "か",
    "한", "ا", "न", "न्", "\u0301", "🦙", "👍🏽", "‍", "\ufe0f", "!", "?!", "...", "--", "==", "_", "/",
    "\\", "{", "}", "$", "€", "+", "<", ">", "|", "\x00", "\x01", "\x1b", "\x7f", "\ufffd", "\ufeff",
    "\ue000", "\U0010ffff", "\u0378", "\U0001fadf", "<s>", "</s>", "<unk>", "<|endoftext|>",
    "<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>", "<0x0A>", "<bos>", "[CLS]",
    "[MASK]", "<mask>", "<|user|>", "<|assistant|>", "<|fim_prefix|>", "<tool_call>", "<|eot_id|>",
    "user", "the", " the", "Hello", " world", "function", "return ", ";\n", "    return",
]

RANGES = [
    (0x20, 0x7E), (0x00, 0xFF), (0x100, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x590, 0x6FF),
    (0x900, 0xDFF), (0xE00, 0x109F), (0x1100, 0x11FF), (0x1E00, 0x1FFF), (0x2000, 0x2BFF),
    (0x2E80, 0x30FF), (0x3400, 0x9FFF), (0xA000, 0xABFF), (0xAC00, 0xD7A3), (0xF900, 0xFFFF),
    (0x10000, 0x1FFFF), (0x20000, 0x323AF), (0xE0000, 0x10FFFF),
]


SENTENCES = [line for line in SENTENCES if line]


def strings():
    random.seed(2024)
    out = ["", " ", "\n", "a", " a", "a ", "\t\t\n", "\n" * 40, " " * 70, "=" * 30, "a" * 100]
    out += SENTENCES
    for _ in range(250):
        line = random.choice(SENTENCES)
        start = random.randrange(len(line))
        out.append(line[start : start + random.randrange(1, 30)])
    for _ in range(1000):
        out.append("".join(random.choice(FRAGMENTS) for _ in range(random.randrange(1, 7))))
    for _ in range(250):
        first, last = random.choice(RANGES)
        codes = [random.randint(first, last) for _ in range(random.randrange(1, 8))]
        out.append("".join(chr(c) for c in codes if not 0xD800 <= c <= 0xDFFF))
    for _ in range(100):
        codes = []
        for _ in range(random.randrange(1, 5)):
            codes.append(random.randint(*random.choice(RANGES)))
            codes.append(ord(random.choice(" a1.\n'")))
        out.append("".join(chr(c) for c in codes if not 0xD800 <= c <= 0xDFFF))
    for _ in range(100):
        noise = bytes(random.randrange(256) for _ in range(random.randrange(1, 8)))
        out.append(noise.decode("utf-8", errors="replace"))
    for _ in range(200):
        digits = "".join(random.choice("0123456789") for _ in range(random.randrange(1, 11)))
        around = [random.choice(FRAGMENTS), random.choice(FRAGMENTS)]
        out.append(around[0] + digits + around[1])
    for _ in range(100):
        blanks = "".join(random.choice("  \n\r\t\u3000") for _ in range(random.randrange(1, 12)))
        out.append(random.choice(["", "a", "."]) + blanks + random.choice(["", "b", "1", "("]))
    return out


class Vocabulary:
    def __init__(self, path):
        import llama_cpp as api

        self.api = api
        parameters = api.llama_model_default_params()
        parameters.vocab_only = True
        quiet = api.llama_log_callback(lambda level, text, data: None)
        self.keep = quiet
        api.llama_log_set(quiet, None)
        self.model = api.llama_model_load_from_file(path.encode(), parameters)
        assert self.model, path
        self.vocab = api.llama_model_get_vocab(self.model)

    def ids(self, text, special):
        data = text.encode()
        room = len(data) + 8
        while True:
            out = (self.api.llama_token * room)()
            n = self.api.llama_tokenize(self.vocab, data, len(data), out, room, special, special)
            if n >= 0:
                return list(out[:n])
            room = -n

    def pieces(self):
        import ctypes

        out = []
        buffer = ctypes.create_string_buffer(4096)
        for token in range(self.api.llama_vocab_n_tokens(self.vocab)):
            n = self.api.llama_token_to_piece(self.vocab, token, buffer, 4096, 0, True)
            out.append(buffer.raw[:n])
        return out

    def roles(self):
        api, vocab = self.api, self.vocab
        n = api.llama_vocab_n_tokens(vocab)
        return {
            "bos": api.llama_vocab_bos(vocab),
            "eos": api.llama_vocab_eos(vocab),
            "adds_bos": bool(api.llama_vocab_get_add_bos(vocab)),
            "ends": [t for t in range(n) if api.llama_vocab_is_eog(vocab, t)],
            "n_control": sum(bool(api.llama_vocab_is_control(vocab, t)) for t in range(n)),
        }


def fnv(data, value=0x811C9DC5):
    for byte in data:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def ids_hash(plain, special):
    ids = plain + [0xFFFFFFFF] + special
    return fnv(b"".join(i.to_bytes(4, "little") for i in ids))


def piece_hash(pieces):
    value = 0x811C9DC5
    for piece in pieces:
        value = fnv(piece + b"\xff", value)
    return value


def main():
    verb = sys.argv[1]
    if verb == "strings":
        json.dump(strings(), sys.stdout, ensure_ascii=False, separators=(",", ":"))
        return
    with open(sys.argv[2], encoding="utf-8") as file:
        texts = json.load(file)
    if verb == "dump":
        vocabulary = Vocabulary(sys.argv[3])
        ids = [[vocabulary.ids(t, False), vocabulary.ids(t, True)] for t in texts]
        pieces = [piece.hex() for piece in vocabulary.pieces()]
        json.dump({"ids": ids, "pieces": pieces, **vocabulary.roles()}, sys.stdout)
        return
    out = {}
    for argument in sys.argv[3:]:
        name, path = argument.split("=", 1)
        vocabulary = Vocabulary(path)
        hashes = [ids_hash(vocabulary.ids(t, False), vocabulary.ids(t, True)) for t in texts]
        out[name] = {
            "ids": "".join(f"{value:08x}" for value in hashes),
            "pieces": piece_hash(vocabulary.pieces()),
            **vocabulary.roles(),
        }
    json.dump(out, sys.stdout, separators=(",", ":"))


main()
